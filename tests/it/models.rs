//! Providers over HTTP, model selection, keys and prompt caching.

mod context;
mod first_request;
mod http_server;
mod images;
mod interruptions;
mod invariants;
mod keys;
mod network;
mod prefix;
mod provider_streams;
mod providers;
mod reminder_cost;
mod remote;
mod selection;
mod stream_quirks;
mod superseded;
mod trace;
mod trial;
