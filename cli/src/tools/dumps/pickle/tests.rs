//! Reading pickles: plain data, cut files, and bytes of any kind.

#![cfg(test)]

use super::*;
use serde_json::json;

fn whole(bytes: &[u8]) -> Result<Value> {
    let mut pickle = Pickle::read(bytes)?;
    assert!(!pickle.is_cut, "{bytes:?}");
    let root = pickle.root.unwrap();
    pickle.value(root)
}

#[test]
fn plain_data_of_every_protocol_is_read() {
    // {'a': [1, 300, -2, 2**40], 'b': (None, True), 'c': 0.5}, as Python writes it.
    let second =
        b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01M,\x01J\xfe\xff\xff\xff\x8a\x06\
        \x00\x00\x00\x00\x00\x01eX\x01\x00\x00\x00bq\x03N\x88\x86q\x04X\x01\x00\x00\x00cq\x05G?\xe0\
        \x00\x00\x00\x00\x00\x00u.";
    let fourth = b"\x80\x04\x95;\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M,\x01J\
        \xfe\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01e\x8c\x01b\x94N\x88\x86\x94\x8c\x01c\x94G?\
        \xe0\x00\x00\x00\x00\x00\x00u.";
    let expected = json!({"a": [1, 300, -2, 1_i64 << 40], "b": [null, true], "c": 0.5});
    assert_eq!(whole(second).unwrap(), expected);
    assert_eq!(whole(fourth).unwrap(), expected);
    // One item at a time, an empty tuple, a value that is there twice, whole numbers with signs.
    let one =
        b"\x80\x02}X\x01\x00\x00\x00x](X\x02\x00\x00\x00\xc3\xa4q\x07h\x07)\x8a\x00\x8a\x01\xff\
        eN\x61s.";
    assert_eq!(whole(one).unwrap(), json!({"x": ["ä", "ä", [], 0, -1, null]}));
    let deep = [&b"\x80\x02"[..], &b"](".repeat(40), &b"e".repeat(40), b"."].concat();
    assert!(whole(&deep).unwrap_err().to_string().contains("more than 16 deep"));
}

#[test]
fn opcodes_that_build_objects_are_refused_by_name() {
    for (opcode, name) in BUILDING {
        let error = Pickle::read(&[0x80, 2, b'N', opcode]).unwrap_err().to_string();
        assert!(error.contains(&format!("byte 3: the opcode {name} builds objects")), "{error}");
    }
    let error = Pickle::read(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00ls\x85R.").unwrap_err();
    assert!(error.to_string().starts_with("byte 2: the opcode GLOBAL"), "{error}");
    for (bytes, needle) in [
        (&b"\x80\x02\xff"[..], "byte 2: no dump has the opcode 0xff"),
        (b"\x80\x02.", "byte 2: it ends without a value"),
        (b"\x80\x02h\x07.", "byte 2: it refers to value 7, which is none"),
        (b"\x80\x02e.", "byte 2: no list or dict is open"),
        (b"\x80\x02N(Ne.", "byte 5: items without a list"),
        (b"\x80\x02](N\x86.", "byte 5: it needs 2 values where there are 1"),
        (b"\x80\x02q\x00.", "byte 2: no value to keep"),
        (b"\x80\x02\x8a\x09", "byte 2: a whole number of 9 bytes"),
    ] {
        let error = Pickle::read(bytes).unwrap_err().to_string();
        assert!(error.starts_with(needle), "{error}");
    }
}

#[test]
fn what_refers_to_itself_or_doubles_itself_ends() {
    let mut cyclic = Pickle::read(b"\x80\x02]q\x00(h\x00h\x00e.").unwrap();
    let root = cyclic.root.unwrap();
    assert!(cyclic.value(root).unwrap_err().to_string().contains("deep"));
    // Ten lists of 255 references each to the one before: 10^24 values.
    let mut bomb = b"\x80\x02]q\x00".to_vec();
    for depth in 0..10_u8 {
        bomb.extend(b"](");
        bomb.extend([b'h', depth].repeat(255));
        bomb.extend([b'e', b'q', depth + 1]);
    }
    bomb.push(b'.');
    let mut bomb = Pickle::read(&bomb).unwrap();
    bomb.spent = BYTES_MOST - (1 << 20);
    let root = bomb.root.unwrap();
    assert!(bomb.value(root).unwrap_err().to_string().contains("more than 1024 MiB"));
    // Lengths that the file does not have are cuts, and take no memory.
    for text in [&b"\x80\x02X\xff\xff\xff\xff"[..], b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff"]
    {
        assert!(Pickle::read(text).unwrap().is_cut);
    }
}

#[test]
fn a_cut_pickle_has_what_stands_before_the_cut() {
    // {'v': 'x', 'entries': [{'n': 1}, {'n': 2}]}
    let bytes =
        b"\x80\x02}(X\x01\x00\x00\x00vX\x01\x00\x00\x00xX\x07\x00\x00\x00entries](}(X\x01\x00\
        \x00\x00nq\x00K\x01u}(h\x00K\x02ueu.";
    let mut most = 0;
    for length in 0..bytes.len() {
        let mut pickle = Pickle::read(&bytes[..length]).unwrap();
        assert!(pickle.is_cut, "{length}");
        let entries = pickle.list(pickle.get("entries"));
        let values = entries.into_iter().map(|entry| pickle.value(entry).unwrap());
        let values: Vec<Value> = values.collect();
        let all = [json!({"n": 1}), json!({"n": 2})];
        assert_eq!(values, all[..values.len()], "{length}");
        assert!(values.len() >= most, "{length}");
        most = values.len();
    }
    assert_eq!(most, 2);
}

#[test]
fn no_bytes_panic() {
    let dump = include_bytes!("../../../../tests/data/files/22-flight-recorder/nccl_trace_rank_0");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |most: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % most
    };
    let codes = b"\x80\x95(qr\x94hjN\x88\x89KMJ\x8aG\x8cCXB\x8d\x8e}])\x85\x86\x87taseu.";
    for round in 0..20_000 {
        let bytes: Vec<u8> = match round % 3 {
            0 => (0..draw(64)).map(|_| draw(256) as u8).collect(),
            1 => (0..draw(64))
                .map(|_| if draw(3) > 0 { codes[draw(codes.len())] } else { 0 })
                .collect(),
            _ => {
                let mut bytes = dump[..draw(dump.len() + 1)].to_vec();
                for _ in 0..draw(4) {
                    if !bytes.is_empty() {
                        let at = draw(bytes.len());
                        bytes[at] = draw(256) as u8;
                    }
                }
                bytes
            }
        };
        if let Ok(mut pickle) = Pickle::read(&bytes) {
            for item in pickle.root.into_iter().chain(pickle.list(pickle.get("entries"))) {
                let _ = pickle.value(item);
            }
        }
    }
}
