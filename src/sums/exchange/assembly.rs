//! The sum of one exchange until it is whole: some chunks are summed here, the others come.

use super::block::{Block, Blocks};
use super::plan::nodes_of;
use super::reassembly::{ReassemblyBuffer, WriteSlot};
use super::store::Sum;
use crate::gpu::{SumCheck, digest_of_bits, digest_of_chunk, nonfinite_mask};
use crate::passes::{self, PassPlace};
use crate::run::NumberFormat;
use crate::sums::{COORDINATOR, Header, NotFinite, Owner, SumId, chunks};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Whether the numbers of a sum are finite, and whose are not.
#[derive(Debug)]
pub(super) struct Finiteness {
    pub(super) finite: bool,
    pub(super) of: NotFinite,
    /// Those of them that this node has not reported yet.
    untold: NotFinite,
}

impl Default for Finiteness {
    fn default() -> Self {
        Self { finite: true, of: NotFinite::default(), untold: NotFinite::default() }
    }
}

impl Finiteness {
    /// Sums of this node are not finite.
    pub(super) fn note_sums_of(&mut self, owner: u32) {
        if self.of.sums_of.insert(owner) {
            self.untold.sums_of.insert(owner);
        }
    }

    /// Terms of these are not finite.
    pub(super) fn note_terms_of(&mut self, holders: impl IntoIterator<Item = u32>) {
        for holder in holders {
            if self.of.terms_of.insert(holder) {
                self.untold.terms_of.insert(holder);
            }
        }
    }

    /// Takes those that this node has not reported yet, if there are some.
    pub(super) fn untold(&mut self) -> Option<NotFinite> {
        let untold = std::mem::take(&mut self.untold);
        (untold != NotFinite::default()).then_some(untold)
    }
}

/// A sum until it is whole.
///
/// # How to drive it
/// It is told who sums which chunks ([`Assembly::plan`]), and who sends some besides
/// ([`Assembly::come_of`]); what comes of another node than these ([`Assembly::comes_of`]) is not
/// for it. It is given each chunk that is summed here ([`Assembly::put`]), that has come
/// ([`Assembly::came`]), or that was read into its place ([`Assembly::placed`]); the first of a
/// chunk counts. When [`Assembly::is_whole`] says so, [`Assembly::finish`] makes it a [`Sum`].
#[derive(Debug)]
pub(super) struct Assembly {
    me: u32,
    out: Arc<ReassemblyBuffer>,
    /// Who sums each chunk, by the plan.
    owners: Vec<Option<u32>>,
    /// Who sends it besides, as the coordinator has said.
    besides: Vec<Option<u32>>,
    digests: Vec<Option<u64>>,
    left: usize,
    pub(super) finiteness: Finiteness,
}

impl Assembly {
    /// A sum of which nothing is here, in this vector.
    pub(super) fn new(me: u32, vector: Vec<f32>) -> Self {
        let out = Arc::new(ReassemblyBuffer::new(vector));
        let left = chunks(out.len());
        Self {
            me,
            out,
            owners: vec![None; left],
            besides: vec![None; left],
            digests: vec![None; left],
            left,
            finiteness: Finiteness::default(),
        }
    }

    /// A sum that was whole, some chunks of which are to be summed again; none if its vector is not
    /// here.
    pub(super) fn of_sum(me: u32, sum: Sum) -> Option<Self> {
        let vector = Arc::try_unwrap(sum.vector?).unwrap_or_else(|shared| {
            passes::count(PassPlace::Copy, 2 * size_of_val(&shared[..]));
            shared.to_vec()
        });
        let mut assembly = Self::new(me, vector);
        assembly.out.close(0..assembly.digests.len());
        for chunk in 0..assembly.digests.len() {
            let digest = assembly.out.read(chunk, |sum| digest_of_chunk(bytemuck::cast_slice(sum)));
            assembly.note(chunk, SumCheck { digest, finite: sum.finite });
        }
        assembly.finiteness.of = sum.nonfinite;
        Some(assembly)
    }

    /// These sum the chunks from now on; those of this node do not come from elsewhere.
    pub(super) fn plan(&mut self, owners: &[Owner]) {
        let own = owners.iter().filter(|owner| owner.node == self.me);
        own.for_each(|owner| self.out.close(owner.start..owner.end));
        self.owners = nodes_of(owners, self.digests.len());
    }

    /// The coordinator says who sends chunks besides their owners.
    pub(super) fn come_of(&mut self, senders: &[Owner]) {
        self.besides = nodes_of(senders, self.digests.len());
    }

    /// Whether a node sums a chunk, by the plan.
    pub(super) fn owns(&self, node: u32, chunk: usize) -> bool {
        self.owners.get(chunk).copied().flatten() == Some(node)
    }

    /// Whether a chunk counts if it comes of this node: of its owner, of one that the coordinator
    /// has named, or of the coordinator itself.
    pub(super) fn comes_of(&self, node: u32, header: &Header) -> bool {
        // What is no chunk at all is refused with its reason.
        node == COORDINATOR
            || header
                .chunk_of(self.out.len())
                .map_or(true, |chunk| self.owns(node, chunk) || self.besides[chunk] == Some(node))
    }

    /// Which chunk this one of a term is of, which has come and is to be summed here.
    pub(super) fn chunk_of_term(&self, header: &Header) -> Result<usize, String> {
        let (chunk, term) = (header.chunk_of(self.out.len())?, header.piece);
        if !self.owns(self.me, chunk) {
            return Err(format!("it sends term {term}, chunk {chunk}, which is summed elsewhere"));
        }
        Ok(chunk)
    }

    /// The vector that chunks are read into.
    pub(super) fn buffer(&self) -> &Arc<ReassemblyBuffer> {
        &self.out
    }

    /// The digests of the chunks that are here.
    pub(super) fn digests(&self) -> &[Option<u64>] {
        &self.digests
    }

    /// A chunk was summed here.
    pub(super) fn put(&mut self, chunk: usize, numbers: &[f32], folded: SumCheck) {
        passes::count(PassPlace::Copy, 2 * size_of_val(numbers));
        self.out.write(chunk, |out| out.copy_from_slice(numbers));
        self.note(chunk, folded);
    }

    /// Takes in a chunk that has come.
    pub(super) fn came(
        &mut self,
        header: &Header,
        from: u32,
        block: Block,
        blocks: &Blocks,
    ) -> Result<(), String> {
        let chunk = header.chunk_of(self.out.len())?;
        if self.owns(self.me, chunk) {
            return Err(format!("it sends a sum of chunk {chunk}, which is summed here"));
        }
        if self.digests[chunk].is_none() {
            let of_wire = Some(header.digest)
                .filter(|digest| header.format == NumberFormat::F32 && *digest != 0);
            let mut folded = SumCheck { digest: 0, finite: true };
            self.out.write(chunk, |out| {
                block.unpack(out);
                folded.digest =
                    of_wire.unwrap_or_else(|| digest_of_chunk(bytemuck::cast_slice(out)));
                folded.finite = nonfinite_mask(out) == 0.0;
            });
            self.note_of(from, chunk, folded);
        }
        blocks.give(block);
        Ok(())
    }

    /// Notes a chunk that was read into its place; false if it is not in the place of this sum.
    pub(super) fn placed(&mut self, header: &Header, from: u32, slot: &WriteSlot) -> bool {
        let completed = slot.complete(&self.out);
        if completed && let Ok(chunk) = header.chunk_of(self.out.len()) {
            // The connection has looked at the numbers.
            let Header { digest, finite, .. } = *header;
            self.note_of(from, chunk, SumCheck { digest, finite });
        }
        completed
    }

    fn note_of(&mut self, from: u32, chunk: usize, folded: SumCheck) {
        self.note(chunk, folded);
        if !folded.finite {
            // Told at once: another sum of the step may be begun before this one is whole.
            self.finiteness.note_sums_of(from);
        }
    }

    fn note(&mut self, chunk: usize, SumCheck { digest, finite }: SumCheck) {
        self.left -= usize::from(self.digests[chunk].replace(digest).is_none());
        self.finiteness.finite &= finite;
    }

    /// A chunk comes from elsewhere after all, also if it is here.
    pub(super) fn reopen(&mut self, chunk: usize) {
        self.out.reopen(chunk);
        self.left += usize::from(self.digests[chunk].take().is_some());
    }

    /// Takes over the chunks of another one that are not here and not summed here.
    pub(super) fn absorb(&mut self, came: &Self) {
        for chunk in 0..came.digests.len() {
            let Some(digest) = came.digests[chunk] else { continue };
            if !self.owns(self.me, chunk) && self.digests[chunk].is_none() {
                let folded = SumCheck { digest, finite: came.finiteness.finite };
                came.out.read(chunk, |numbers| self.put(chunk, numbers, folded));
            }
        }
        self.finiteness.of.extend(came.finiteness.of.clone());
    }

    /// Whether all chunks are here.
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// The sum, once it is whole, with the digest of its chunks' digests or of its bits.
    pub(super) fn finish(self, id: SumId, confirmed: bool, of_bits: bool) -> Sum {
        let digests: Vec<u64> = self.digests.into_iter().flatten().collect();
        let vector = self.out.take();
        let digest = match of_bits {
            true => {
                passes::count(PassPlace::Digest, size_of_val(&vector[..]));
                digest_of_bits(&vector)
            }
            false => xxh3_64(bytemuck::cast_slice(&digests)),
        };
        let Finiteness { finite, of: nonfinite, .. } = self.finiteness;
        let sum = Sum::made(id, Some(Arc::new(vector)), digest);
        Sum { finite, nonfinite, confirmed, ..sum }
    }
}
