//! Checks of the tree: layers, wording, generated pages.

mod prose;
mod reference_pages;
mod tidy;
