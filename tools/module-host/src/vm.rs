//! One instance of the module.

use wasmi::{Config, Engine, Instance, Linker, Memory, Module, Store, TypedFunc, Val};

use crate::functions;
use crate::machine::Machine;

/// Instructions that one callback may take; far more than any needs, so that a loop without an end
/// is a failure and not a test that hangs (`tests/bursts.rs` has the longest).
const FUEL: u64 = 2_000_000_000;

/// The module, ready to run.
pub struct Program {
    engine: Engine,
    module: Module,
    linker: Linker<Host>,
}

/// A machine, and how to reach the module's memory.
pub(crate) struct Host {
    pub(crate) machine: Machine,
    pub(crate) memory: Option<Memory>,
    pub(crate) allocate: Option<TypedFunc<u32, u32>>,
}

/// The module trapped: what a proxy answers with refusals.
#[derive(Debug)]
pub struct Trap {
    /// The callback in which it happened.
    pub callback: &'static str,
    /// What the interpreter says.
    pub reason: String,
    /// The last lines of the log, where a panic leaves its message.
    pub log: Vec<String>,
}

/// One instance of the module.
pub struct Vm {
    store: Store<Host>,
    instance: Instance,
    instructions: u64,
    most_instructions: u64,
}

impl Program {
    /// Compiles the module that is under test.
    #[must_use]
    pub fn load() -> Self {
        let bytes = crate::module();
        let mut config = Config::default();
        config.consume_fuel(true);
        let engine = Engine::new(&config);
        let module = Module::new(&engine, &bytes).expect("a module");
        let mut linker = Linker::new(&engine);
        functions::link(&mut linker, &module);
        Self { engine, module, linker }
    }

    /// Starts an instance, up to but without its first callback.
    #[must_use]
    pub fn start(&self, machine: Machine) -> Vm {
        let host = Host { machine, memory: None, allocate: None };
        let mut store = Store::new(&self.engine, host);
        store.set_fuel(FUEL).expect("fuel is metered");
        let instance = self.linker.instantiate_and_start(&mut store, &self.module);
        let instance = instance.unwrap_or_else(|error| panic!("the module does not link: {error}"));
        store.data_mut().memory = instance.get_memory(&store, "memory");
        let allocate = instance.get_typed_func(&store, "proxy_on_memory_allocate");
        store.data_mut().allocate = Some(allocate.expect("the module can allocate"));
        let mut vm = Vm { store, instance, instructions: 0, most_instructions: 0 };
        vm.call("_initialize", &[]).expect("it initializes");
        vm
    }
}

impl Vm {
    /// The machine that it runs in.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.store.data().machine
    }

    /// The machine that it runs in.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.store.data_mut().machine
    }

    /// Runs a callback. Returns what it returned, or 0 where it returns nothing. As a proxy, passes
    /// over one that the module does not export.
    ///
    /// # Errors
    ///
    /// [`Trap`] where it trapped or did not end; the instance is of no use then.
    pub fn call(&mut self, callback: &'static str, numbers: &[u32]) -> Result<u32, Trap> {
        let Some(function) = self.instance.get_func(&self.store, callback) else {
            self.machine_mut().before(callback, numbers);
            return Ok(0);
        };
        let returns = function.ty(&self.store).results().len();
        let arguments: Vec<Val> =
            numbers.iter().map(|number| Val::I32(number.cast_signed())).collect();
        let mut results = [Val::I32(0)];
        self.machine_mut().before(callback, numbers);
        self.store.set_fuel(FUEL).expect("fuel is metered");
        let ended = function.call(&mut self.store, &arguments, &mut results[..returns]);
        let instructions = FUEL - self.store.get_fuel().expect("fuel is metered");
        self.instructions += instructions;
        self.most_instructions = self.most_instructions.max(instructions);
        match ended {
            Ok(()) => {
                let result = results[0].i32().unwrap_or(0).cast_unsigned();
                self.machine_mut().after(callback, numbers, result);
                Ok(result)
            }
            Err(error) => Err(Trap {
                callback,
                reason: error.to_string(),
                log: self.machine().log.iter().rev().take(3).cloned().collect(),
            }),
        }
    }

    /// Instructions that all callbacks together have taken since the last look. A bulk copy counts by
    /// its bytes.
    pub fn take_instructions(&mut self) -> u64 {
        std::mem::take(&mut self.instructions)
    }

    /// The most instructions that one callback has taken since the last look.
    pub fn take_most_instructions(&mut self) -> u64 {
        std::mem::take(&mut self.most_instructions)
    }

    /// Bytes of the instance's memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let memory = self.store.data().memory.expect("the module has memory");
        memory.data_size(&self.store)
    }
}
