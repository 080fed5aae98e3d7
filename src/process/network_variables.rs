//! Variables of the user's environment that name proxies and certificates, for programs that use the network. Pure.

use std::ffi::OsString;

use secrecy::SecretString;

/// The values are not displayed, because the address of a proxy may contain a password.
#[derive(Clone, Default)]
pub struct NetworkVariables(Vec<(OsString, OsString)>);

impl std::fmt::Debug for NetworkVariables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl NetworkVariables {
    pub fn new(variables: Vec<(OsString, OsString)>) -> Self {
        Self(variables)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(OsString, OsString)> {
        self.0.iter()
    }

    /// The passwords in addresses of proxies, as they are written there.
    pub fn passwords(&self) -> Vec<SecretString> {
        let values = self.0.iter().filter_map(|(_, value)| value.to_str());
        values.filter_map(password).map(SecretString::from).collect()
    }
}

fn password(address: &str) -> Option<&str> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn passwords_of_proxies_are_found_and_never_displayed() {
        for (address, expected) in [
            ("http://user:p%40ss-word@proxy.example:3128", Some("p%40ss-word")),
            ("user:pass-word@proxy.example:3128/", Some("pass-word")),
            ("http://user:pass@word@proxy.example", Some("pass@word")),
            ("http://user@proxy.example:3128", None),
            ("http://proxy.example:3128/a:b@c", None),
            ("localhost,.example", None),
        ] {
            let variables = NetworkVariables::new(vec![("HTTPS_PROXY".into(), address.into())]);
            let passwords = variables.passwords();
            assert_eq!(passwords.first().map(ExposeSecret::expose_secret), expected, "{address}");
            assert_eq!(format!("{variables:?}"), "[\"HTTPS_PROXY\"]");
        }
    }
}
