//! Checks of the tree: layers, wording, generated pages, figures.

mod performance;
mod prose;
mod reference_pages;
mod tidy;
