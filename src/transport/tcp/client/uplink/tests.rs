//! Which orders came over the connection that there is.

#![cfg(test)]

use super::*;

#[test]
fn orders_of_earlier_connections_are_void() {
    let mut uplink = Uplink::new(Pipe::new().0);
    assert!(!uplink.brought(OrderId(1)), "none has come yet");
    for connection in 0..300 {
        let first = OrderId(10 * connection + 5);
        uplink.brings(first);
        uplink.brings(first.next());
        assert!(uplink.brought(first) && uplink.brought(first.next()));
        assert!(!uplink.brought(OrderId(first.0 - 1)));
        uplink.replace(Pipe::new().0);
        assert!(!uplink.brought(first) && !uplink.brought(first.next()));
    }
}
