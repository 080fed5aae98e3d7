//! Checks of the tree: layers, wording, generated pages, figures.

mod pages;
mod performance;
mod prose;
mod reference_pages;
mod tidy;
