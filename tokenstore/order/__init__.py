"""The order, version 1. Floor 1: integers -> integers. Which sequence of which source stands at each place of a run.

ORD-0 Purpose. Everything here is a pure function of integers: no floats, no state, no library's random numbers, so it is
the same on every platform and library version. `div` and `mod` are floored; "uint64" means arithmetic modulo 2**64.
The plain-int twins in `tests/naive.py` are written from this text; `tests/golden/order_v1/` holds vectors made by them.

ORD-1 Keys (`keys.py`). mix(x) is the SplitMix64 finaliser (Steele, Lea, Flood 2014) on uint64:
    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
A base key is the first 8 bytes, little-endian, of blake2b(digest_size=8) of the JSON text of [seed, purpose, name]
(ASCII, separators ", "). A counted key is mix(base + (counter + 1) * 0x9E3779B97F4A7C15), uint64. Purposes:
    "step", name "", counter step        the permutation inside a step
    "sequence", source, counter epoch    the permutation of a source's sequences
    "offset", source, counter epoch      where the circle of `concat` begins
Neighbouring seeds, epochs and steps therefore share nothing, and a source's order does not depend on which other
sources, stages or ranks there are.

ORD-2 Permutation (`permutation.py`). permute(i, n, key) is a bijection of range(n) with O(1) memory, invertible. Round r has
the key k_r = mix(mix(key) + r), so that neighbouring keys share no round.
n < 65,536: swap-or-not (Hoang, Morris, Rogaway 2012), 24 rounds r = 0..23, from x = i, k = k_r:
     K = ((k >> 32) * n) >> 32;  y = (K - x) mod n;  if mix(k ^ max(x, y)) is odd then x = y
n >= 65,536: Feistel network on b = bit_length(n - 1) bits, walked until the result is below n (Black, Rogaway 2002).
The low half has h = b - b div 2 bits, the high half b div 2. Rounds r = 0..7:
    r even: high ^= mix(low ^ k_r) mod 2**(b div 2);   r odd: low ^= mix(high ^ k_r) mod 2**h
Why two? On few bits a Feistel network is far from uniform (chi2/df above 100 on 5 elements at 6 rounds); swap-or-not is
not, but costs ten times as much.

ORD-3 Integer weights (`weights.py`). Weights are decimals, read exactly. Scaled to integers with gcd 1; if their sum is at
most 2**20 these are the shares, exactly. Otherwise, with room R = 2**20 less the sources set aside and total W of the
others' weights: every source with w * R < W gets share 1 and is set aside, until none is left; the rest share R by
largest remainder, ties by name.

ORD-4 Interleave (`interleave.py`). Sources sorted by name, shares c_s with sum P, k sources, D = 2k - 2. Slot n = 1..P of a
period goes, among the sources with D (c_s n - x P) >= P, to the one with the smallest deadline
(P (D x + D - 1)) div (D c_s) + 1, ties to the first name; x counts the sequences of s so far. k = 1: always that one. This is
Tijdeman's chairman assignment (1980): after every slot, each source is within 1 - 1/D of its share of the slots.
Worked: shares a 3, b 2 -> a b a b a;  shares a 1, b 1, c 2 -> c a b c.

ORD-5 Segments (`schedule.py`). The cursor counts the sequences of the whole run before a point. Stages begin at steps;
cursor(step) adds up the stages' batch sizes. A stage is one segment of the cursor, or several if sources run out inside
it. The interleave starts afresh in each segment; counts of sources go on:
    sequence n of the run, in a segment from `start` with slots of period P: q, r = divmod(n - start, P);
    source s = source of slot r;  its number k = base_s + q c_s + (slots of s before r)
A source limited to m sequences in all: under `drop` the segment ends right after its last one and it takes no part in
any later segment; under `stop` the plan ends at the last whole step before the one that would ask for one too many;
under `error` such a plan is refused. Of several sources that run out at one cursor the first name is dropped first.

ORD-6 Inside a step. Row p of a step with G sequences is sequence cursor(step) + permute(p, G, step key). Row p is a place of
the global batch before it is split over ranks (ORD-8).

ORD-7 `concat` windows (`windows.py`). A source of T tokens has N = T div L sequences an epoch. Its k-th sequence is number
i of epoch e, with e, i = divmod(k, N), and begins at stream position
    (offset + L * permute(i, N, sequence key of e)) mod T,   offset = (offset key of e) mod T
and runs L tokens round the circle; the joint of the circle is a document border.
Worked: T = 10, L = 3, offset 8: N = 3 windows, in circle order 8 9 0 | 1 2 3 | 4 5 6; token 7 is left out this epoch.

ORD-8 Split over ranks (`split.py`). Microbatch j of rank r of W ranks, B sequences each, is rows [(j W + r) B, (j W + r) B + B) of
the step. So what has been consumed after any microbatch is a prefix of the global stream.

ORD-9 Without shuffle every permutation is the identity and every offset 0.

ORD-10 Sizes. Cursors, token counts and sequence numbers are below 2**62; shares and their products fit int64.

Not promised: an order across versions of this text. A change of any rule above is a new ORDER_VERSION.
Why not numpy's Generator? Its streams are stable, its shuffles are not (NEP 19), and an array of n indices is not O(1).
Why interleave before the split over ranks? Slicing first makes all ranks draw the same source in the same step.
"""

ORDER_VERSION = 1
