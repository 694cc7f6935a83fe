use std::cell::RefCell;
use std::rc::Rc;

use fairshare::store::shared_data::{SharedData, SharedDataFailure, Swap, Version, Versioned};

use super::Machine;

/// The shared data of a process, as one worker sees it.
#[derive(Clone)]
pub struct SharedMap(pub(super) Rc<RefCell<Machine>>);

impl Machine {
    /// Shared data are gone.
    pub fn forget(&mut self) {
        self.data.clear();
    }
}

impl SharedMap {
    pub fn new(machine: &Rc<RefCell<Machine>>) -> Self {
        Self(Rc::clone(machine))
    }
}

impl SharedData for SharedMap {
    fn get(&mut self, key: &str) -> Result<Versioned, SharedDataFailure> {
        if self.0.borrow().broken {
            return Err(SharedDataFailure);
        }
        Ok(match self.0.borrow().data.get(key) {
            Some((bytes, cas)) => Versioned { bytes: bytes.clone(), version: Version::At(*cas) },
            None => Versioned { bytes: vec![], version: Version::Absent },
        })
    }

    fn swap(&mut self, key: &str, bytes: &[u8], seen: Version) -> Result<Swap, SharedDataFailure> {
        let interloper = self.0.borrow_mut().before_swap.take();
        if let Some(interloper) = interloper {
            interloper(self);
        }
        let mut machine = self.0.borrow_mut();
        if machine.broken {
            return Err(SharedDataFailure);
        }
        if machine.lost_swaps > 0 && seen != Version::Absent {
            machine.lost_swaps -= 1;
            machine.last_cas += 1;
            let cas = machine.last_cas;
            if let Some((_, version)) = machine.data.get_mut(key) {
                *version = cas;
            }
        }
        // As the proxy does: a key that is absent takes any swap.
        if let Some((_, cas)) = machine.data.get(key)
            && seen != Version::At(*cas)
        {
            return Ok(if machine.boasts { Swap::Done } else { Swap::Lost });
        }
        machine.last_cas += 1;
        machine.swaps += 1;
        let value = (bytes.to_vec(), machine.last_cas);
        machine.data.insert(key.to_owned(), value);
        Ok(if machine.lies { Swap::Lost } else { Swap::Done })
    }
}
