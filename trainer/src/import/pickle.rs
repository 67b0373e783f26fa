//! The part of Python's pickle language that PyTorch's checkpoints are written in.
//!
//! A pickle is a program that can call anything that Python can import. Here nothing is ever called:
//! the few constructors that tensors need are known by name and become plain data, any other name
//! that the program calls is an error. Objects lie in one list and point to each other by number, so
//! that the memory is bounded by the length of the pickle, whatever it says.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};

/// Number of an object of the pickle.
pub type Id = usize;

/// A Python object as far as checkpoints need it.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    /// `None`, and integers beyond 64 bits, which no checkpoint needs.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number with a point.
    Float(f64),
    /// A text.
    Text(String),
    /// Raw bytes, whose content does not matter here.
    Bytes,
    /// A tuple, a list or a set.
    List(Vec<Id>),
    /// A dictionary, in the order of its insertions.
    Dict(Vec<(Id, Id)>),
    /// A name that could be called: `module.name`.
    Global(String),
    /// What stands for the numbers of a tensor, by its persistent id.
    Storage(Storage),
    /// A view of a storage.
    Tensor(TensorView),
}

/// The numbers of one or more tensors: an entry of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The class that PyTorch names, such as `FloatStorage`.
    pub class: String,
    /// Name of the entry in the archive's `data` folder.
    pub key: String,
    /// Number of elements.
    pub len: u64,
}

/// A view of a storage, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorView {
    /// What it is a view of.
    pub storage: Storage,
    /// Its first element.
    pub offset: u64,
    /// Sizes of its dimensions.
    pub shape: Vec<u64>,
    /// Distance of neighbours in each dimension.
    pub strides: Vec<u64>,
}

/// A pickle after it has run.
#[derive(Debug)]
pub struct Pickle {
    objects: Vec<Object>,
    root: Id,
}

impl Pickle {
    /// Runs the pickle program.
    ///
    /// # Errors
    /// Says at which byte what cannot be followed: an unknown operation, a name that is called and
    /// is not one of the known constructors, a program that ends too early.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut machine = Machine { bytes, ..Machine::default() };
        loop {
            let at = machine.at;
            match machine.step().with_context(|| format!("byte {at} of the pickle"))? {
                Some(root) => return Ok(Self { objects: machine.objects, root }),
                None => continue,
            }
        }
    }

    /// The object that the program leaves.
    pub fn root(&self) -> &Object {
        self.get(self.root)
    }

    /// An object by its number.
    pub fn get(&self, id: Id) -> &Object {
        &self.objects[id]
    }
}

/// Longest name of a global or a storage; with it and the next, what is copied stays small.
const MAX_NAME: usize = 256;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// Python's stack machine.
#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    objects: Vec<Object>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
}

impl<'a> Machine<'a> {
    /// One operation; the result once the program stops.
    fn step(&mut self) -> Result<Option<Id>> {
        match self.byte()? {
            b'.' => return self.pop().map(Some),
            // PROTO and FRAME say nothing that matters here.
            0x80 => drop(self.byte()?),
            0x95 => drop(self.take(8)?),
            op @ (b'(' | b'0' | b'1') => self.stack_operation(op)?,
            op @ (b'q' | b'r' | 0x94 | b'h' | b'j') => self.memo_operation(op)?,
            op @ (b'}' | b']' | b')' | 0x8f | b't' | b'l' | b'd' | 0x85..=0x87 | 0x91) => {
                self.new_container(op)?;
            }
            op @ (b'a' | b'e' | b's' | b'u' | 0x90) => self.fill_container(op)?,
            op @ (b'c' | 0x93) => self.global(op)?,
            b'R' | 0x81 => self.call()?,
            b'b' => self.build()?,
            b'Q' => self.persistent()?,
            op @ (b'i' | b'o' | 0x92 | b'P' | 0x82..=0x84) => {
                bail!(
                    "operation {op:#04x} builds objects in a way that state dicts never do: refused"
                )
            }
            op => {
                let object = self.literal(op)?;
                self.push(object);
            }
        }
        Ok(None)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let n = usize::try_from(n).ok().filter(|n| *n <= rest.len());
        let n = n.with_context(|| format!("the pickle ends after {} bytes", self.bytes.len()))?;
        self.at += n;
        Ok(&rest[..n])
    }

    /// A little-endian unsigned integer of `n` bytes.
    fn unsigned(&mut self, n: u64) -> Result<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn text(&mut self, length_bytes: u64) -> Result<String> {
        let len = self.unsigned(length_bytes)?;
        Ok(std::str::from_utf8(self.take(len)?).context("a text is not UTF-8")?.to_owned())
    }

    fn line(&mut self) -> Result<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|b| *b == b'\n').context("a line has no end")?;
        let line = std::str::from_utf8(&rest[..end]).context("a name is not UTF-8")?;
        self.at += end + 1;
        Ok(line.to_owned())
    }

    fn push(&mut self, object: Object) {
        self.stack.push(self.objects.len());
        self.objects.push(object);
    }

    fn pop(&mut self) -> Result<Id> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        ensure!(self.stack.len() > bottom, "the stack is empty");
        self.stack.pop().context("the stack is empty")
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().context("the stack is empty")
    }

    /// What lies above the last mark.
    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().context("there is no mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn literal(&mut self, op: u8) -> Result<Object> {
        Ok(match op {
            b'N' => Object::None,
            0x88 => Object::Bool(true),
            0x89 => Object::Bool(false),
            b'K' => Object::Int(i64::from(self.byte()?)),
            b'M' => Object::Int(self.unsigned(2)? as i64),
            b'J' => Object::Int(i64::from(self.unsigned(4)? as u32 as i32)),
            0x8a => {
                let len = self.byte()?;
                long(self.take(len.into())?)
            }
            0x8b => {
                let len = self.unsigned(4)?;
                long(self.take(len)?)
            }
            b'G' => Object::Float(f64::from_bits(self.unsigned(8)?.swap_bytes())),
            0x8c => Object::Text(self.text(1)?),
            b'X' => Object::Text(self.text(4)?),
            0x8d => Object::Text(self.text(8)?),
            b'U' | b'C' => self.skip_bytes(1)?,
            b'T' | b'B' => self.skip_bytes(4)?,
            0x8e | 0x96 => self.skip_bytes(8)?,
            other => bail!("operation {other:#04x} is unknown"),
        })
    }

    fn skip_bytes(&mut self, length_bytes: u64) -> Result<Object> {
        let len = self.unsigned(length_bytes)?;
        self.take(len)?;
        Ok(Object::Bytes)
    }

    fn stack_operation(&mut self, op: u8) -> Result<()> {
        match op {
            b'(' => self.marks.push(self.stack.len()),
            b'1' => drop(self.pop_to_mark()?),
            _ => drop(self.pop()?),
        }
        Ok(())
    }

    fn memo_operation(&mut self, op: u8) -> Result<()> {
        let key = match op {
            0x94 => self.memo.len() as u64,
            b'q' | b'h' => self.unsigned(1)?,
            _ => self.unsigned(4)?,
        };
        if op == b'h' || op == b'j' {
            let id = self.memo.get(&key);
            self.stack.push(*id.with_context(|| format!("memo {key} is empty"))?);
        } else {
            self.memo.insert(key, self.top()?);
        }
        Ok(())
    }

    fn new_container(&mut self, op: u8) -> Result<()> {
        let object = match op {
            b'}' => Object::Dict(Vec::new()),
            b']' | b')' | 0x8f => Object::List(Vec::new()),
            b'd' => Object::Dict(pairs(self.pop_to_mark()?)?),
            0x85..=0x87 => {
                let n = usize::from(op - 0x84);
                let mut items = (0..n).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                items.reverse();
                Object::List(items)
            }
            _ => Object::List(self.pop_to_mark()?),
        };
        self.push(object);
        Ok(())
    }

    fn fill_container(&mut self, op: u8) -> Result<()> {
        let new = match op {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_to_mark()?,
        };
        let top = self.top()?;
        match (&mut self.objects[top], op) {
            (Object::List(items), b'a' | b'e' | 0x90) => items.extend(new),
            (Object::Dict(items), b's' | b'u') => items.extend(pairs(new)?),
            _ => bail!("operation {op:#04x} fills something that is no list or dictionary"),
        }
        Ok(())
    }

    fn global(&mut self, op: u8) -> Result<()> {
        let (module, name) = match op {
            b'c' => (self.line()?, self.line()?),
            _ => {
                let name = self.pop()?;
                let module = self.pop()?;
                match (&self.objects[module], &self.objects[name]) {
                    (Object::Text(module), Object::Text(name)) => (module.clone(), name.clone()),
                    _ => bail!("the name of a global is no text"),
                }
            }
        };
        ensure!(module.len() + name.len() <= MAX_NAME, "the name of a global is too long");
        self.push(Object::Global(format!("{module}.{name}")));
        Ok(())
    }

    /// A call of a known constructor becomes its result, any other is refused.
    fn call(&mut self) -> Result<()> {
        let arguments = self.pop()?;
        let callee = self.pop()?;
        let Object::Global(name) = &self.objects[callee] else {
            bail!("the pickle calls something that is no name: refused");
        };
        let name = name.clone();
        let Object::List(arguments) = &self.objects[arguments] else {
            bail!("`{name}` is called without a tuple of arguments");
        };
        // No constructor looks at more of them.
        let arguments: Vec<Id> = arguments.iter().copied().take(4).collect();
        let first = arguments.first().copied().context("a call lacks its argument");
        match name.as_str() {
            "collections.OrderedDict" => {
                ensure!(arguments.is_empty(), "an OrderedDict is called with arguments");
                self.push(Object::Dict(Vec::new()));
            }
            "torch._utils._rebuild_tensor_v2" => {
                let tensor = self.tensor(&arguments);
                self.push(tensor.context("`_rebuild_tensor_v2` is called wrongly")?);
            }
            // Both are what they are given.
            "torch._utils._rebuild_parameter" | "torch.Size" => self.stack.push(first?),
            "torch.device" => self.push(Object::None),
            _ => bail!(
                "the pickle calls `{name}`: refused. A state dict holds tensors and nothing else: \
                 `torch.save(model.state_dict(), ...)`"
            ),
        }
        Ok(())
    }

    /// Attributes of a dictionary, such as a state dict's `_metadata`, are dropped.
    fn build(&mut self) -> Result<()> {
        self.pop()?;
        let top = self.top()?;
        match &self.objects[top] {
            Object::Dict(_) => Ok(()),
            _ => bail!("the pickle sets attributes of something that is no dictionary: refused"),
        }
    }

    /// `('storage', class, key, device, number of elements)`
    fn persistent(&mut self) -> Result<()> {
        let id = self.pop()?;
        let fields = match &self.objects[id] {
            Object::List(fields) => fields.iter().map(|id| &self.objects[*id]).collect(),
            _ => Vec::new(),
        };
        let storage = match fields.as_slice() {
            [Object::Text(kind), Object::Global(class), Object::Text(key), _, Object::Int(len)]
                if kind == "storage" =>
            {
                let class = class.strip_prefix("torch.").unwrap_or(class).to_owned();
                let len = u64::try_from(*len).context("a storage has a negative length")?;
                ensure!(key.len() <= MAX_NAME, "the name of a storage is too long");
                Storage { class, key: key.clone(), len }
            }
            _ => bail!("a persistent id does not name a storage as PyTorch does"),
        };
        self.push(Object::Storage(storage));
        Ok(())
    }

    /// `(storage, offset, shape, strides, requires_grad, hooks, ...)`
    fn tensor(&self, arguments: &[Id]) -> Result<Object> {
        let fields: Vec<_> = arguments.iter().take(4).map(|id| &self.objects[*id]).collect();
        let [Object::Storage(storage), Object::Int(offset), shape, strides] = fields.as_slice()
        else {
            bail!("its arguments are not a storage, an offset, a shape and strides");
        };
        let view = TensorView {
            storage: storage.clone(),
            offset: u64::try_from(*offset).context("the offset is negative")?,
            shape: self.sizes(shape)?,
            strides: self.sizes(strides)?,
        };
        ensure!(
            view.shape.len() == view.strides.len(),
            "{} dimensions have {} strides",
            view.shape.len(),
            view.strides.len()
        );
        Ok(Object::Tensor(view))
    }

    fn sizes(&self, list: &Object) -> Result<Vec<u64>> {
        let Object::List(items) = list else { bail!("sizes are no tuple") };
        ensure!(items.len() <= MAX_DIMENSIONS, "a tensor has {} dimensions", items.len());
        let size = |id: &Id| match &self.objects[*id] {
            Object::Int(size) => u64::try_from(*size).context("a size is negative"),
            _ => bail!("a size is no integer"),
        };
        items.iter().map(size).collect()
    }
}

/// A little-endian two's complement integer.
fn long(bytes: &[u8]) -> Object {
    if bytes.len() > 8 {
        return Object::None;
    }
    let fill = if bytes.last().is_some_and(|b| *b >= 0x80) { 0xff } else { 0 };
    let mut word = [fill; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    Object::Int(i64::from_le_bytes(word))
}

fn pairs(items: Vec<Id>) -> Result<Vec<(Id, Id)>> {
    ensure!(items.len().is_multiple_of(2), "a dictionary has a key without a value");
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        format!("{:#}", Pickle::parse(bytes).unwrap_err())
    }

    #[test]
    fn a_call_is_refused_by_its_name() {
        // pickle.dumps of an object whose __reduce__ is (os.system, ("true",)), protocols 2 and 4.
        let two = b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03.";
        assert!(error(two).contains("the pickle calls `posix.system`: refused"), "{}", error(two));
        let four = b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\
            \x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.";
        assert!(error(four).contains("the pickle calls `posix.system`: refused"));
        let new = b"\x80\x02c__main__\nTransformer\n)\x81}b.";
        assert!(error(new).contains("`__main__.Transformer`: refused"), "{}", error(new));
        let old = b"(S'true'\nios\nsystem\n.";
        assert!(error(old).contains("byte 1 of the pickle"), "{}", error(old));
    }

    #[test]
    fn every_cut_of_a_pickle_is_an_error() {
        let whole = b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00bM\x01\x02u.";
        assert!(Pickle::parse(whole).is_ok());
        for len in 0..whole.len() {
            assert!(Pickle::parse(&whole[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn integers_have_their_sign() {
        let value = |bytes: &[u8]| Pickle::parse(bytes).unwrap().root().clone();
        assert_eq!(value(b"J\xff\xff\xff\xff."), Object::Int(-1));
        assert_eq!(value(b"\x8a\x02\x00\x80."), Object::Int(-32768));
        assert_eq!(value(b"\x8a\x00."), Object::Int(0));
        assert_eq!(value(b"\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."), Object::None);
        assert_eq!(value(b"G\x3f\xf8\0\0\0\0\0\0."), Object::Float(1.5));
    }

    #[test]
    fn what_grows_by_doubling_stays_small() {
        // Each list holds the one before it a hundred times over: numbers, not copies.
        let mut bytes = b"]q\x00".to_vec();
        for i in 0..200u8 {
            bytes.extend([b'(', b'h', i, b'h', i, b'h', i, b'l', b'q', i + 1]);
        }
        bytes.push(b'.');
        assert!(Pickle::parse(&bytes).unwrap().objects.len() < 300);
    }
}
