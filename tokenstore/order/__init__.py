r"""The order, version 1. Layer 1: integers -> integers. Which sequence of which source stands at each place of a run.

ORD-0 Purpose. Everything here is a pure function of integers: no floats, no state, no library's random numbers, so it is
the same on every platform and library version. `div` and `mod` are floored; "uint64" means arithmetic modulo 2**64.
The plain-int twins in `tests/support/twins/order.py` are written from this text; `tests/golden/order_v1/` holds vectors made by them.

ORD-1 Keys (`keys.py`). mix(x) is the SplitMix64 finaliser (Steele, Lea, Flood 2014) on uint64:
    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
A base key is the first 8 bytes, little-endian, of blake2b(digest_size=8) of the JSON text of [seed, purpose, name], such as
[-3, "row", "na\u00efve"]: ASCII, the separator is a comma and one space, the seed is in decimal. In its strings " and \
are escaped with \; backspace, form feed, newline, carriage return and tab are \b \f \n \r \t; every other
character outside 0x20..0x7e is \u and four lower-case hex digits, one beyond 0xffff as its two UTF-16 surrogates. A
name has no surrogate of its own. A counted key is mix(base + (counter + 1) * 0x9E3779B97F4A7C15), uint64. Purposes:
    "step", name "", counter step        the permutation inside a step
    "sequence", source, counter epoch    the permutation of a source's sequences
    "offset", source, counter epoch      where the circle of `concat` begins
    "jitter", source, counter epoch      the order in which the length classes are packed
    "class", source, counter epoch       the permutation inside a length class
    "row", source, counter k             the order of the pieces of its k-th sequence
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
largest remainder, ties by name. The setting aside is done in rounds: all sources that fail the test with the R and W of
the round are set aside together, then R and W are computed again. The result is not divided by its gcd once more.
Names are compared by code point, here and everywhere below.

ORD-4 Interleave (`interleave.py`). Sources sorted by name, shares c_s with sum P, k sources, D = 2k - 2. Slot n = 1..P of a
period goes, among the sources with D (c_s n - x P) >= P, to the one with the smallest deadline
(P (D x + D - 1)) div (D c_s) + 1, ties to the first name; x counts the sequences of s so far. k = 1: always that one. This is
Tijdeman's chairman assignment (1980): after every slot, each source is within 1 - 1/D of its share of the slots.
Worked: shares a 3, b 2 -> a b a b a;  shares a 1, b 1, c 2 -> c a b c.

ORD-5 Segments (`schedule.py`). The cursor counts the sequences of the whole run before a point. Stages begin at steps;
cursor(step) adds up the stages' batch sizes. A stage is one segment of the cursor, or several if sources run out inside
it. A stage without shares of its own changes the batch size only: it continues the segments of the stage before it, as if
there were no border. The interleave starts afresh in each segment; counts of sources go on:
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

ORD-11 Ends. Under `last_batch: pad` the step in which the run ends is whole: its sequences at or past the end are rows without
a piece. Under `drop` that step is not part of the plan. Rows without a piece, and what is left of a packed row, hold the
plan's pad token: one integer, the pad token of the first source by name with weight at step 0 (of a pool: its first
member), else that store's end-of-text token, else 0. It is part of the history of every step.

ORD-12 Documents by length (`repeats.py`). The documents of a store, sorted by (tokens, document number), are at positions x = 0..D-1; those
of one length make a run: its tokens t, first position and number. A pool takes several stores, its members, sorted by name,
each with a repeat factor p/q in lowest terms; a source that is no pool is its own only member, p/q = 1. F(a) = (a p) div q.
In epoch e the document at position x is given F(e + x + 1) - F(e + x) times, so after any number of epochs all documents
were given equally often, within one. The copies of one epoch are numbered by ranks, in the order of their positions:
    rank k is position  ceil((F(e) + k + 1) q / p) - 1 - e;  where that is D or more, rank k is empty in this epoch
Ranks are laid out once, as epoch 0 has them, so that nothing below depends on the epoch: a run has the ranks
[F(first), F(first + number)), the last run those up to ceil(D p / q), and each of them room for the run's t tokens. No epoch
puts a longer document at a rank: the position of rank k is greatest in epoch 0.
Worked: p/q = 1/2, D = 5: 3 ranks; epoch 0 positions 1, 3, none; epoch 1 positions 0, 2, 4.

ORD-13 Pieces (`classes.py`). A rank with room for t tokens has pieces j = 0 .. t div L - 1 of length L and, if v = t mod L > 0,
piece j = t div L of length v. Piece j with room v holds tokens [j L, min(j L + v, n)) of the n tokens of the document at the
rank, or nothing. The pieces with room v are length class v; its h[v] slots are numbered by member, run, rank and j, in this
order. P = sum of h is the number of pieces.

ORD-14 `best_fit` (`packing.py`). An epoch puts the slots of every class into N bins of L tokens. Bins are handled in groups: all
bins of a group hold the same lengths. For each number of tokens left there is a stack of groups. At first one group of N
empty bins. An entry (length v, slots [a, b)) is placed by turns until a = b:
     best fit takes the least tokens left r >= v that has a group, worst fit the greatest; none: the packing has failed
     the top group of r with g bins; copies in each bin: m = min(r div v, b - a) for best fit, 1 for worst fit, cut to what
     may join; bins: k = min(g, (b - a) div m), cut to what may join
     the first k bins of the group leave it, and make a new group that goes on the stack of r - m v, or is full; bin t of
     them takes the slots [a + t m, a + (t + 1) m); a grows by k m
P - N slots may join a bin that is not empty. Let w of them be left; every attempt below starts with w = P - N again. If w = 0, only empty bins (r = L) count in the choice of
r. Bins that are not empty take k m of w, so m <= w and k <= w div m; empty bins take k (m - 1), so m <= w + 1 and, where
m > 1, k <= w div (m - 1). So exactly N bins are filled, the last slots alone if
need be.
The order of the entries: class v is cut into s = min(h[v], max(1, 16384 div L)) sub-entries, class L into one; sub-entry i has
the slots [i h[v] div s, (i + 1) h[v] div s) and the sort key v (2**22 + f u), where u is the top 16 bits of
counted_key(counted_key(jitter key of the epoch, v), i), less 2**15. Class L goes first; then the classes v >= cut, by falling
sort key, worst fit; then the others, by falling sort key, best fit; equal keys by falling v, then rising i. cut is the
greatest v <= L such that the pieces shorter than v hold at most c (short div 100) tokens, short = sum of v h[v] over v < L:
full pieces leave no room for others, and would hide how much there is to spread. The first of these attempts (c, f) that
does not fail is taken:  (2, 38) (5, 38) (10, 26) (25, 12) (50, 12), and then with no cut, all best fit: f = 2, f = 0. The
last is best-fit decreasing.
Without shuffle only the last attempt is tried, with one entry a class.
Number of sequences: B is the number of bins best-fit decreasing fills when it has P of them and may join freely. LB =
ceil(sum of v h[v] / L). N = B where LB < 32, else min(P, max(B + ceil(B / (2 q)), LB + ceil(LB / q))), q = 1000 from P = 100,000 on, 200
below. `none`: N = P, one slot a bin, classes from L down to 1, slots rising.
Why from the histogram? It costs the same for 10**4 and 10**9 documents. Why spread the long ones first? Best-fit decreasing puts
equal lengths together, so that few documents would find new mates next epoch (35-86 % of pairs again on 10,000 documents).

ORD-15 Sequences of a packed source (`packed.py`). e, i = divmod(k, N); sequence k is bin permute(i, N, sequence key of e). The bins
are numbered by group, in the order in which the groups were made, then by place in it. A bin holds its placements, the last
one first, each with its slots rising. With shuffle these n slots are shuffled by Fisher and Yates: for t = n - 1 down to 1, t changes places with
((x >> 32) (t + 1)) >> 32, x = counted_key(row key of k, t). Slot y of class v is the slot of ORD-13 with the number
permute(y, h[v], counted_key(class key of e, v)). The pieces stand in the row one after the other; what is empty takes no
place, and the rest of the row is padding.

Not promised: an order across versions of this text. A change of any rule above is a new ORDER_VERSION.
Why not numpy's Generator? Its streams are stable, its shuffles are not (NEP 19), and an array of n indices is not O(1).
Why interleave before the split over ranks? Slicing first makes all ranks draw the same source in the same step.
"""

ORDER_VERSION = 1
