//! What NCCL's workers are told.

#![cfg(test)]

use super::*;

#[test]
fn versions_are_read_as_nccl_writes_them() {
    for (code, text) in [(2708, "2.7.8"), (21403, "2.14.3"), (23000, "2.30.0"), (23203, "2.32.3")] {
        assert_eq!(Version::of_code(code).to_string(), text);
    }
    assert!(Version::of_code(2804) < Version::OLDEST && Version::of_code(21400) >= Version::OLDEST);
    assert!(
        Version::of_code(22907) < Version::MANY_RANKS
            && Version::of_code(23003) >= Version::MANY_RANKS
    );
}

#[test]
fn ids_survive_being_written_down() {
    let id = UniqueId(std::array::from_fn(|place| (place * 37 % 256) as u8));
    let text = id.to_string();
    assert_eq!((text.len(), text.parse::<UniqueId>().unwrap()), (256, id));
    assert_eq!(text.to_uppercase().parse::<UniqueId>().unwrap(), id);
    for bad in [&text[1..], &format!("+{}", &text[1..]), &"é".repeat(128), ""] {
        assert!(
            matches!(bad.parse::<UniqueId>(), Err(NcclError::BadId { length }) if length == bad.len()),
            "{bad}"
        );
    }
}

#[test]
fn ranks_are_below_the_size_and_different() {
    assert!(check_ranks(4, &[3, 0]).is_ok());
    assert!(matches!(check_ranks(4, &[]), Err(NcclError::NoRanks)));
    assert!(matches!(check_ranks(4, &[0, 4]), Err(NcclError::Rank { rank: 4, size: 4 })));
    assert!(matches!(check_ranks(4, &[1, 2, 1]), Err(NcclError::Rank { rank: 1, size: 4 })));
}

#[test]
fn ranks_that_share_a_device_need_a_new_library_and_its_switch() {
    let (old, new) = (Version::of_code(22907), Version::of_code(23003));
    for switch in [None, Some("0"), Some("1")] {
        assert!(check_devices(old, switch, &[4, 5, 6], &[0, 1, 2]).is_ok());
        let refused = check_devices(old, switch, &[4, 5, 6], &[0, 1, 0]);
        assert_eq!(
            refused,
            Err(NcclError::SharedDevice { first: 4, second: 6, device: 0, version: old })
        );
    }
    for switch in [None, Some("0"), Some("")] {
        assert_eq!(
            check_devices(new, switch, &[0, 1], &[3, 3]),
            Err(NcclError::Switch { first: 0, second: 1, device: 3 })
        );
    }
    assert!(check_devices(new, Some("1"), &[0, 1], &[3, 3]).is_ok());
    let words = check_devices(new, None, &[0, 1], &[3, 3]).unwrap_err().to_string();
    assert!(words.contains("NCCL_MULTI_RANK_GPU_ENABLE=1"), "{words}");
}
