use super::*;

fn v4(family: u16, port: u16, ip: [u8; 4], padding: usize) -> Vec<u8> {
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(port.to_be_bytes());
    bytes.extend(ip);
    bytes.extend(vec![0; padding]);
    bytes
}

fn v6(port: u16, ip: &str, scope: Option<u32>) -> Vec<u8> {
    let mut bytes = 10_u16.to_ne_bytes().to_vec();
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(ip.parse::<Ipv6Addr>().unwrap().octets());
    bytes.extend(scope.iter().flat_map(|scope| scope.to_ne_bytes()));
    bytes
}

#[test]
fn addresses_of_calls_are_read() {
    let internet = |text: &str| Ok(Destination::Internet(text.parse().unwrap()));
    let is =
        |bytes: &[u8], expected: Result<Destination, Errno>| assert_eq!(read_destination(bytes), expected);
    is(&v4(2, 80, [192, 0, 2, 1], 8), internet("192.0.2.1:80"));
    is(&v4(2, 80, [192, 0, 2, 1], 100), internet("192.0.2.1:80"));
    is(&v4(2, 80, [192, 0, 2, 1], 7), Err(Errno::INVAL));
    is(&v4(0, 0, [0; 4], 8), Ok(Destination::None));
    is(&v4(1, 80, [47, 97, 0, 0], 8), Err(Errno::AFNOSUPPORT));
    is(&v6(80, "2001:db8::1", Some(0)), internet("[2001:db8::1]:80"));
    is(&v6(80, "fe80::1", Some(3)), internet("[fe80::1%3]:80"));
    is(&v6(80, "2001:db8::1", None), internet("[2001:db8::1]:80"));
    is(&v6(80, "2001:db8::1", None)[..23], Err(Errno::INVAL));
    is(&[], Err(Errno::INVAL));
    is(&[2], Err(Errno::INVAL));
}

fn egress(patterns: &[&str]) -> Arc<EgressBroker> {
    let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
    let addresses = vec![("allowed.example".to_owned(), Ipv4Addr::new(192, 0, 2, 9))];
    let (listener, _) = io::pipe().unwrap();
    let listener = Arc::new(CallListener::new(listener.into()));
    EgressBroker::start(
        AllowedHosts { patterns, addresses, ..AllowedHosts::default() },
        sandbox::Egress::Hosts,
        listener,
        None,
    )
    .unwrap()
}

#[test]
fn further_host_is_allowed() {
    let egress = egress(&["192.0.2.1"]);
    for (host, address) in [("192.0.2.2:80", "192.0.2.2:80"), ("[2001:db8::1]", "[2001:db8::1]:443")] {
        assert!(egress.target(address.parse().unwrap(), true).is_err(), "the control");
        egress.allow(host.parse().unwrap());
        assert!(egress.target(address.parse().unwrap(), true).is_ok());
    }
    assert!(egress.target("192.0.2.2:81".parse().unwrap(), true).is_err());
}

#[test]
fn only_allowed_targets_are_connected() {
    let egress = egress(&["allowed.example:443", "192.0.2.1", "[2001:db8::1]:443"]);
    let invented = egress.invented("allowed.example").unwrap()[0];
    let resolver = egress.resolver.port();
    for (address, expected) in [
        ("192.0.2.1:80".to_owned(), Ok("192.0.2.1:80".to_owned())),
        ("[::ffff:192.0.2.1]:80".into(), Ok("[::ffff:192.0.2.1]:80".into())),
        ("192.0.2.2:80".into(), Err("192.0.2.2:80")),
        ("[::ffff:192.0.2.2]:80".into(), Err("192.0.2.2:80")),
        ("[2001:db8::1]:443".into(), Ok("[2001:db8::1]:443".into())),
        ("[2001:db8::1]:80".into(), Err("[2001:db8::1]:80")),
        (format!("{invented}:443"), Ok("192.0.2.9:443".into())),
        (format!("[::ffff:{invented}]:443"), Ok("[::ffff:192.0.2.9]:443".into())),
        (format!("{invented}:80"), Err("allowed.example:80")),
        ("198.18.0.200:443".into(), Err("198.18.0.200:443")),
        ("192.0.2.9:443".into(), Err("192.0.2.9:443")),
        ("8.8.8.8:53".into(), Ok(format!("127.0.0.1:{resolver}"))),
        ("[2001:4860:4860::8888]:53".into(), Ok(format!("[::ffff:127.0.0.1]:{resolver}"))),
        ("127.0.0.1:1".into(), Err("127.0.0.1:1")),
        ("0.0.0.0:1".into(), Err("127.0.0.1:1")),
        ("[::]:1".into(), Err("[::1]:1")),
        (format!("127.0.0.1:{resolver}"), Err("")),
    ] {
        let target = egress.target(address.parse().unwrap(), true);
        let found = target.map(|target| egress.address(&target).unwrap().to_string());
        match expected {
            Err("") => assert!(found.is_err(), "{address}"),
            expected => assert_eq!(found, expected.map_err(str::to_owned), "{address}"),
        }
    }
}

#[test]
fn name_servers_of_the_system_are_told_from_other_servers() {
    let name_servers = || vec!["192.0.2.53".parse().unwrap(), "2001:db8::53".parse().unwrap()];
    for (address, expected) in [
        ("192.0.2.53:53", true),
        ("[::ffff:192.0.2.53]:53", true),
        ("[2001:db8::53]:53", true),
        ("192.0.2.53:54", false),
        ("192.0.2.54:53", false),
    ] {
        assert_eq!(is_name_server(address.parse().unwrap(), name_servers), expected, "{address}");
    }
}
