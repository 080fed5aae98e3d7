//! The store that a run uses.

use super::*;

/// Without a home directory, the user learns why the store is in memory.
#[tokio::test]
async fn unrequested_memory_store_has_a_reason() {
    for (store, expected) in
        [(None, Some("there is no home directory to keep the store in")), (Some("memory"), None)]
    {
        let flags = Flags { store: store.map(str::to_owned), ..Flags::default() };
        let runtime = Config::new(&flags, Environment::default()).unwrap().into_runtime().unwrap();
        assert_eq!(runtime.context.store.substituted(), expected, "{store:?}");
    }
}
