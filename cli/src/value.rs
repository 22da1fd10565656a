//! Numbers with units, as `tc` reads and writes them.
//!
//! Problem: `tc` means bits by `kbit`, bytes by `kbps`, 1024 by `k` in sizes and 1000 in rates, and
//! prints each kind in a way of its own; scripts depend on all of it.
//! Source: spec §2.2 (reading) and §11.4 (writing), checked against `tc` and `sch_cake` themselves.
//! Law: a number is what C's `strtod` takes off the front of a word, and the whole rest is the unit.
//! Left out: words without a number, and what is allowed where (`words`). Where `tc` lets a number
//! through that cannot be meant (`nan`, `inf`, a negative time, more than fits) we refuse it.

use ucake::time::Span;
use ucake::units::{MemSize, Rate};

/// Reads a rate: `20mbit`, `2.5MBps`, `1e6`. A number without a unit is in bits per second.
///
/// A rate of less than a byte per second comes out as zero, as in `tc`; whether that is allowed is
/// up to the caller.
pub fn parse_rate(word: &str) -> Option<Rate> {
    let (number, unit) = split_number(word)?;
    let bits = number * bits_per_second(unit)?;
    // `Rate` counts bits in a u64 too; above that `tc` wraps around, which nobody can want.
    let bytes = truncate(bits / 8.0, u64::MAX / 8)?;
    Some(Rate::from_bytes(bytes))
}

/// Bits per second in one of `unit`.
fn bits_per_second(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_lowercase();
    let (prefix, per_byte) = match unit.strip_suffix("bps") {
        Some(prefix) => (prefix, 8.0),
        None if unit.is_empty() => ("", 1.0),
        None => (unit.strip_suffix("bit")?, 1.0),
    };
    Some(per_byte * prefix_factor(prefix)?)
}

/// What a prefix multiplies by: 1000s, or 1024s with an `i`.
fn prefix_factor(prefix: &str) -> Option<f64> {
    let power = |letter: &str| match letter {
        "k" => Some(1),
        "m" => Some(2),
        "g" => Some(3),
        "t" => Some(4),
        _ => None,
    };
    match prefix.strip_suffix('i') {
        _ if prefix.is_empty() => Some(1.0),
        Some(letter) => Some(1024_f64.powi(power(letter)?)),
        None => Some(1000_f64.powi(power(prefix)?)),
    }
}

/// Reads a time: `100ms`, `0.5s`, `300` (microseconds). Parts of a microsecond are cut off.
pub fn parse_time(word: &str) -> Option<Span> {
    let (number, unit) = split_number(word)?;
    let micros = match unit.to_ascii_lowercase().as_str() {
        "" | "us" | "usec" | "usecs" => 1.0,
        "ms" | "msec" | "msecs" => 1e3,
        "s" | "sec" | "secs" => 1e6,
        _ => return None,
    };
    let micros = truncate(number * micros, u32::MAX.into())?;
    Some(Span::from_micros(i64::try_from(micros).ok()?))
}

/// Reads a size: `4mb`, `64k`, `1500`. Multiples are of 1024, with or without the `b`.
pub fn parse_size(word: &str) -> Option<MemSize> {
    const KILO: f64 = 1024.0;
    let (number, unit) = split_number(word)?;
    let bytes = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => KILO,
        "m" | "mb" => KILO * KILO,
        "g" | "gb" => KILO * KILO * KILO,
        "kbit" => KILO / 8.0,
        "mbit" => KILO * KILO / 8.0,
        "gbit" => KILO * KILO * KILO / 8.0,
        _ => return None,
    };
    // The largest sizes are shown as `4Gb`, which is one too many; what is shown can be typed.
    let bytes = truncate(number * bytes, 1 << 32)?;
    Some(MemSize(bytes.min(u32::MAX.into())))
}

/// Reads a decimal integer, sign allowed, nothing behind it (C's `strtol` with base 10).
pub fn parse_integer(word: &str) -> Option<i64> {
    word.trim_start_matches(is_c_space).parse().ok()
}

/// Reads an unsigned 32-bit number in the base its prefix tells: `0x…` hexadecimal, `0…` octal, else
/// decimal (C's `strtoul` with base 0).
pub fn parse_mask(word: &str) -> Option<u32> {
    let word = word.trim_start_matches(is_c_space);
    let word = word.strip_prefix('+').unwrap_or(word);
    let (digits, radix) = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if word.len() > 1 && word.starts_with('0') => (&word[1..], 8),
        None => (word, 10),
    };
    // A second sign is taken by Rust and not by C.
    if digits.starts_with('+') {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

/// A number that is not negative, cut to a whole one; `None` outside 0…`max`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "range checked; cutting off is what is asked for"
)]
fn truncate(number: f64, max: u64) -> Option<u64> {
    // One above `max`, exactly representable for both maxima in use; NaN fails the comparison.
    let bound = max as f64 + 1.0;
    (number >= 0.0 && number < bound).then_some(number as u64)
}

fn is_c_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// Splits a word into the longest number at its front, in C's notation, and the rest.
fn split_number(word: &str) -> Option<(f64, &str)> {
    let word = word.trim_start_matches(is_c_space);
    let (negative, unsigned) = match word.as_bytes().first()? {
        b'-' => (true, &word[1..]),
        b'+' => (false, &word[1..]),
        _ => (false, word),
    };
    let (magnitude, rest) = split_hexadecimal(unsigned).or_else(|| split_decimal(unsigned))?;
    Some((if negative { -magnitude } else { magnitude }, rest))
}

/// Length of the run of digits at the front of `text`.
fn digits(text: &str, radix: u32) -> usize {
    text.find(|c: char| !c.is_digit(radix)).unwrap_or(text.len())
}

/// Length of an exponent at the front of `text` (`e-3`), 0 where there is none.
fn exponent(text: &str, letter: char) -> usize {
    let Some(rest) = text.strip_prefix([letter, letter.to_ascii_uppercase()]) else { return 0 };
    let unsigned = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    match digits(unsigned, 10) {
        0 => 0,
        count => text.len() - unsigned.len() + count,
    }
}

/// Length of `digits[.digits]` at the front of `text`, 0 if there is not one digit.
fn mantissa(text: &str, radix: u32) -> usize {
    let whole = digits(text, radix);
    let Some(fraction) = text[whole..].strip_prefix('.') else { return whole };
    match whole + digits(fraction, radix) {
        0 => 0,
        count => count + 1,
    }
}

fn split_decimal(text: &str) -> Option<(f64, &str)> {
    let mantissa = mantissa(text, 10);
    if mantissa == 0 {
        return None;
    }
    let (number, rest) = text.split_at(mantissa + exponent(&text[mantissa..], 'e'));
    Some((number.parse().ok()?, rest))
}

fn split_hexadecimal(text: &str) -> Option<(f64, &str)> {
    let body = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))?;
    let mantissa = mantissa(body, 16);
    if mantissa == 0 {
        return None;
    }
    let mut value = 0.0;
    let mut scale = 1.0;
    let mut behind_point = false;
    for digit in body[..mantissa].chars() {
        match digit.to_digit(16) {
            Some(digit) => {
                value = value * 16.0 + f64::from(digit);
                scale *= if behind_point { 16.0 } else { 1.0 };
            }
            None => behind_point = true,
        }
    }
    let rest = &body[mantissa..];
    let length = exponent(rest, 'p');
    let power = match rest[..length].get(1..) {
        Some(power) => power.parse::<i32>().ok()?,
        None => 0,
    };
    Some((value / scale * 2_f64.powi(power), &rest[length..]))
}

/// Writes a rate as `tc` does: `20Mbit`, `93744bit`, `987654Kbit`.
pub fn rate(rate: Rate) -> String {
    rate_in(rate, 1_000, "")
}

/// Writes a rate as `tc -iec` does: `20Mibit`, `93744bit`, `19531Kibit`.
pub fn rate_iec(rate: Rate) -> String {
    rate_in(rate, 1_024, "i")
}

fn rate_in(rate: Rate, step: u64, infix: &str) -> String {
    let mut bits = rate.bits();
    let mut unit = String::new();
    for next in ["K", "M", "G", "T"] {
        // Below a thousand steps nothing may be lost; above, at most three digits stay.
        if bits < step || (!bits.is_multiple_of(step) && bits < 1_000 * step) {
            break;
        }
        bits /= step;
        unit = format!("{next}{infix}");
    }
    format!("{bits}{unit}bit")
}

/// Writes a time as `tc` does: `5ms`, `14.5ms`, `999us`, `1e+03s`. Negative ones do not occur.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn time(span: Span) -> String {
    let micros = span.micros().max(0);
    match micros {
        1_000_000.. => format!("{}s", general(micros as f64 / 1e6, 3)),
        1_000.. => format!("{}ms", general(micros as f64 / 1e3, 3)),
        _ => format!("{micros}us"),
    }
}

/// Writes a size as `tc` does: `4Mb`, `15140Kb`, `5000000b`.
#[expect(clippy::cast_precision_loss, reason = "six digits are shown")]
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, u64, &str); 3] =
        [(1 << 30, 1024, "Gb"), (1 << 20, 1024, "Mb"), (1 << 10, 16, "Kb")];
    for (unit, tolerance, name) in UNITS {
        let nearest = (bytes as f64 / unit as f64).round_ties_even();
        if bytes >= unit && (nearest * unit as f64 - bytes as f64).abs() < tolerance as f64 {
            return format!("{}{name}", general(nearest, 6));
        }
    }
    format!("{bytes}b")
}

/// C's `%.{precision}g`: that many digits, no zeros at the end, an exponent where the number is as
/// long as that or longer.
fn general(number: f64, precision: usize) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let (digits, power) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let power: i32 = power.parse().expect("`{:e}` writes an integer exponent");
    let places = i32::try_from(precision).unwrap_or(i32::MAX) - 1 - power;
    match usize::try_from(places) {
        Ok(places) if power >= -4 => without_trailing_zeros(&format!("{number:.places$}")).into(),
        _ => {
            let sign = if power < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", without_trailing_zeros(digits), power.abs())
        }
    }
}

fn without_trailing_zeros(number: &str) -> &str {
    if !number.contains('.') {
        return number;
    }
    number.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(word: &str) -> Option<u64> {
        parse_rate(word).map(Rate::bits)
    }

    #[test]
    fn rates_are_read_in_every_unit_whatever_the_case() {
        let table = [
            ("0", 0),
            ("1000000", 1_000_000),
            ("1e6", 1_000_000),
            ("8bit", 8),
            ("128kbit", 128_000),
            ("1.5Mbit", 1_500_000),
            ("20Mibit", 20 << 20),
            ("1GIBIT", 1 << 30),
            ("1gbit", 1_000_000_000),
            ("1tbit", 1_000_000_000_000),
            ("1tibit", 1 << 40),
            ("10bps", 80),
            ("1kbps", 8_000),
            ("1kibps", 8 << 10),
            ("160MBps", 1_280_000_000),
            ("1mibps", 8 << 20),
            ("1gbps", 8_000_000_000),
            ("1gibps", 8 << 30),
            ("1tbps", 8_000_000_000_000),
            ("1tibps", 8 << 40),
            ("+5mbit", 5_000_000),
            (" 5mbit", 5_000_000),
            (".5mbit", 500_000),
            ("5.mbit", 5_000_000),
            ("1e3kbit", 1_000_000),
            ("2E+1mbit", 20_000_000),
            ("0x10kbit", 16_000),
            ("0x1p3kbit", 8_000),
            ("0X1.8p1kbit", 3_000),
            ("7bit", 0),
            ("-0", 0),
        ];
        for (word, expected) in table {
            assert_eq!(bits(word), Some(expected), "{word}");
        }
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        let words = [
            "",
            "mbit",
            "-5mbit",
            "50%",
            "5 mbit",
            "5k",
            "5m",
            "5M",
            "5mb",
            "5MB",
            "5mbits",
            "1e",
            "0x",
            ".",
            "-",
            "+",
            "1e-",
            "nan",
            "inf",
            "infinity",
            "1e30",
            "5ibit",
            "5bibit",
            "--5mbit",
            "+-5mbit",
            "5µbit",
            "1e400bit",
            "5ibps",
            "20000pbit",
        ];
        for word in words {
            assert_eq!(bits(word), None, "{word}");
        }
    }

    #[test]
    fn times_are_microseconds_unless_told_otherwise() {
        let table = [
            ("0", 0),
            ("300", 300),
            ("300us", 300),
            ("300usec", 300),
            ("300USECS", 300),
            ("999.5", 999),
            ("20ms", 20_000),
            ("1.13ms", 1_130),
            ("20msec", 20_000),
            ("20msecs", 20_000),
            ("1s", 1_000_000),
            ("0.5sec", 500_000),
            ("2secs", 2_000_000),
            ("4294.967295s", 4_294_967_295),
        ];
        for (word, expected) in table {
            assert_eq!(parse_time(word).map(Span::micros), Some(expected), "{word}");
        }
        for word in ["", "ms", "-5", "5x", "5ns", "4295s", "nan", "inf", "5 ms", "5m"] {
            assert_eq!(parse_time(word), None, "{word}");
        }
    }

    #[test]
    fn sizes_are_binary_and_have_32_bits() {
        let table = [
            ("0", 0),
            ("1500", 1_500),
            ("1500b", 1_500),
            ("64k", 65_536),
            ("64KB", 65_536),
            ("1.5k", 1_536),
            ("8mb", 8 << 20),
            ("1g", 1 << 30),
            ("1kbit", 128),
            ("1mbit", 131_072),
            ("1gbit", 134_217_728),
            ("4294967295", 4_294_967_295),
            ("4294967295.5", 4_294_967_295),
        ];
        for (word, expected) in table {
            assert_eq!(parse_size(word), Some(MemSize(expected)), "{word}");
        }
        assert_eq!(parse_size("4gb"), Some(MemSize(u32::MAX.into())), "what is shown can be typed");
        for word in ["", "x", "-1", "4.1gb", "5g", "4294967297", "5tb", "nan", "1kib"] {
            assert_eq!(parse_size(word), None, "{word}");
        }
    }

    #[test]
    fn integers_are_decimal_and_masks_have_the_base_of_their_prefix() {
        assert_eq!(parse_integer("-64"), Some(-64));
        assert_eq!(parse_integer("+5"), Some(5));
        assert_eq!(parse_integer(" 5"), Some(5));
        for word in ["", "10x", "0x10", "1.5", "99999999999999999999"] {
            assert_eq!(parse_integer(word), None, "{word}");
        }
        let masks = [
            ("255", 0xff),
            ("0xff00", 0xff00),
            ("0377", 0xff),
            ("0", 0),
            ("+5", 5),
            ("0xffffffff", u32::MAX),
            ("4294967295", u32::MAX),
        ];
        for (word, expected) in masks {
            assert_eq!(parse_mask(word), Some(expected), "{word}");
        }
        for word in ["", "zz", "08", "-1", "0x", "4294967296", "0x1ffffffff", "++5", "0x+5"] {
            assert_eq!(parse_mask(word), None, "{word}");
        }
    }

    #[test]
    fn rates_are_written_in_the_largest_unit_that_loses_little() {
        let table = [
            (0, "0bit"),
            (8, "8bit"),
            (93_744, "93744bit"),
            (128_000, "128Kbit"),
            (1_000_000, "1Mbit"),
            (1_250_000, "1250Kbit"),
            (20 << 20, "20971Kbit"),
            (987_654_000, "987654Kbit"),
            (1_001_001_000, "1001Mbit"),
            (999_999_999_000, "999999Mbit"),
            (1_000_000_000_000, "1Tbit"),
            (1_000_000_000_000_000, "1000Tbit"),
        ];
        for (bits, expected) in table {
            assert_eq!(rate(Rate::from_bits(bits)), expected);
        }
    }

    #[test]
    fn times_are_written_with_three_digits() {
        let table = [
            (0, "0us"),
            (999, "999us"),
            (1_000, "1ms"),
            (1_005, "1ms"),
            (1_129, "1.13ms"),
            (1_999, "2ms"),
            (5_000, "5ms"),
            (12_345, "12.3ms"),
            (14_534, "14.5ms"),
            (109_534, "110ms"),
            (141_937, "142ms"),
            (999_999, "1e+03ms"),
            (1_000_000, "1s"),
            (2_270_000, "2.27s"),
            (35_500_000, "35.5s"),
            (1_000_000_000, "1e+03s"),
            (4_294_967_291, "4.29e+03s"),
        ];
        for (micros, expected) in table {
            assert_eq!(time(Span::from_micros(micros)), expected);
        }
    }

    #[test]
    fn sizes_are_written_whole_or_in_bytes() {
        let table = [
            (0, "0b"),
            (1_000, "1000b"),
            (1_500, "1500b"),
            (8_200, "8Kb"),
            (65_536, "64Kb"),
            (161_280, "161280b"),
            (1 << 20, "1Mb"),
            (4 << 20, "4Mb"),
            (5_000_000, "5000000b"),
            (15_503_360, "15140Kb"),
            (1_025 << 20, "1025Mb"),
            (1 << 30, "1Gb"),
            (u32::MAX.into(), "4Gb"),
            (3_000_000 << 10, "3e+06Kb"),
            (1_000_001 << 10, "1e+06Kb"),
        ];
        for (bytes, expected) in table {
            assert_eq!(size(bytes), expected);
        }
    }
}
