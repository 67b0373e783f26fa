//! Lines in, text and numbers out, over any byte stream; no `core::fmt`.

use embedded_io::{Read, Write};

const BACKSPACE: u8 = 0x08;
const DELETE: u8 = 0x7f;
/// Ctrl-D.
const END_OF_TRANSMISSION: u8 = 0x04;

/// A person or a test at the other end of a byte stream.
pub struct Console<S> {
    stream: S,
    /// The other end is a terminal that shows only what it is sent.
    bare_terminal: bool,
    /// Typed characters are sent back.
    echo: bool,
    /// The last byte was a carriage return: a line feed right after it belongs to it.
    after_return: bool,
}

/// What was read.
pub enum Line<'a> {
    /// A line without its end, and without blanks around it.
    Text(&'a str),
    /// It did not fit; all of it was read and dropped.
    TooLong,
    /// It is not UTF-8.
    NotText,
    /// The stream has ended, or failed.
    End,
}

impl<S: Read + Write> Console<S> {
    /// `bare_terminal`: the other end shows only what it is sent, as a terminal on a UART does.
    pub fn new(stream: S, bare_terminal: bool) -> Self {
        Self { stream, bare_terminal, echo: bare_terminal, after_return: false }
    }

    /// Stops, or resumes, sending typed characters back to a bare terminal.
    pub fn quiet(&mut self, quiet: bool) {
        self.echo = self.bare_terminal && !quiet;
    }

    /// Reads up to the end of the line, into `buffer`.
    pub fn read_line<'a>(&mut self, buffer: &'a mut [u8]) -> Line<'a> {
        // Bytes of the line, those beyond the buffer included.
        let mut length = 0;
        loop {
            match self.read_byte() {
                None | Some(END_OF_TRANSMISSION) if length == 0 => return Line::End,
                None | Some(END_OF_TRANSMISSION | b'\r' | b'\n') => break,
                Some(BACKSPACE | DELETE) => {
                    length = self.erase(buffer, length);
                }
                Some(byte) if byte < b' ' && byte != b'\t' => {}
                Some(byte) => {
                    if let Some(slot) = buffer.get_mut(length) {
                        *slot = byte;
                        self.echo(&[byte]);
                    }
                    length += 1;
                }
            }
        }
        self.echo(b"\r\n");
        match buffer.get(..length).map(core::str::from_utf8) {
            None => Line::TooLong,
            Some(Err(_)) => Line::NotText,
            Some(Ok(text)) => Line::Text(text.trim_ascii()),
        }
    }

    /// Takes the last character of the line back, all its bytes; gives the new length.
    fn erase(&mut self, buffer: &[u8], mut length: usize) -> usize {
        let is_continuation = |at: usize| buffer.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
        if length == 0 {
            return 0;
        }
        if length <= buffer.len() {
            self.echo(b"\x08 \x08");
        }
        length -= 1;
        while length > 0 && is_continuation(length) {
            length -= 1;
        }
        length
    }

    fn read_byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(1) => {}
                _ => return None,
            }
            let second_half = self.after_return && byte == *b"\n";
            self.after_return = byte == *b"\r";
            if !second_half {
                return Some(byte[0]);
            }
        }
    }

    fn echo(&mut self, bytes: &[u8]) {
        if self.echo {
            self.bytes(bytes);
        }
    }

    /// Sends bytes. A stream that fails has nobody left to be told so.
    /// Never inlined: it has dozens of callers, and none of them is in a hurry.
    #[inline(never)]
    fn bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes());
        self
    }

    /// Ends the line.
    pub fn end_line(&mut self) {
        self.bytes(if self.bare_terminal { b"\r\n" } else { b"\n" });
        let _ = self.stream.flush();
    }

    /// Sends a number in decimal.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.decimal(number, false)
    }

    /// Sends a number in decimal, a comma between thousands.
    pub fn grouped(&mut self, number: u64) -> &mut Self {
        self.decimal(number, true)
    }

    #[inline(never)]
    fn decimal(&mut self, mut number: u64, grouped: bool) -> &mut Self {
        // 20 digits of the largest number and 6 commas.
        let mut text = [0; 26];
        let mut start = text.len();
        for (written, slot) in text.iter_mut().rev().enumerate() {
            start -= 1;
            if grouped && written % 4 == 3 {
                *slot = b',';
            } else {
                *slot = b'0' + (number % 10) as u8;
                number /= 10;
            }
            if number == 0 {
                break;
            }
        }
        self.bytes(text.get(start..).unwrap_or(b"?"));
        self
    }

    /// Sends the lowest `DIGITS` digits of a number in hexadecimal.
    pub fn hex<const DIGITS: usize>(&mut self, number: u64) -> &mut Self {
        let mut text = [0; DIGITS];
        let mut rest = number;
        for slot in text.iter_mut().rev() {
            *slot = match (rest & 15) as u8 {
                small @ 0..10 => b'0' + small,
                large => b'a' + large - 10,
            };
            rest >>= 4;
        }
        self.bytes(&text);
        self
    }
}
