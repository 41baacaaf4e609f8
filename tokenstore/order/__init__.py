r"""The order, version 1. Layer 1: integers -> integers. Which sequence of which source is at each position of a run.

ORD-0 Purpose. Everything here is a pure function of integers. It uses no floats, no state and no library's random numbers,
so the result is the same on every platform and with every library version. `div` and `mod` round towards minus infinity.
"uint64" means arithmetic modulo 2**64. The plain-Python twins in `tests/support/twins/` are written from this text;
`tests/golden/order_v1/` holds vectors computed by the twins.

ORD-1 Keys (`keys.py`). mix(x) is the SplitMix64 finaliser (Steele, Lea, Flood 2014) on uint64:
    x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;  x *= 0x94D049BB133111EB;  x ^= x >> 31
A base key is the first 8 bytes, little-endian, of blake2b(digest_size=8) of the JSON text of [seed, purpose, name], for
example [-3, "row", "na\u00efve"]. The text is ASCII, the separator is a comma and one space, and the seed is decimal. In
strings, " and \ are escaped with \; backspace, form feed, newline, carriage return and tab are \b \f \n \r \t; every other
character outside 0x20..0x7e is \u and four lower-case hex digits. A character above 0xffff is written as its two UTF-16
surrogates. A name contains no surrogates itself. A counted key is mix(base + (counter + 1) * 0x9E3779B97F4A7C15), uint64.
Purposes:
    "step", name "", counter step        the permutation inside a step
    "sequence", source, counter epoch    the permutation of a source's sequences
    "offset", source, counter epoch      where the circle of `concat` begins
    "jitter", source, counter epoch      the order in which the length classes are packed
    "class", source, counter epoch       the permutation inside a length class
    "row", source, counter k             the order of the pieces of the source's k-th sequence
    "block", source, counter epoch       the permutation of a source's blocks
    "place", source, counter epoch       the permutations inside these blocks
Neighbouring seeds, epochs and steps therefore have unrelated keys, and the order of a source does not depend on the other
sources, the stages or the ranks.

ORD-2 Permutation (`permutation.py`). permute(i, n, key) is an invertible bijection of range(n) in O(1) memory. Round r uses
the key k_r = mix(mix(key) + r), so that neighbouring keys share no round.
n < 65,536: swap-or-not (Hoang, Morris, Rogaway 2012), 24 rounds r = 0..23, starting from x = i, with k = k_r:
     K = ((k >> 32) * n) >> 32;  y = (K - x) mod n;  if mix(k ^ max(x, y)) is odd then x = y
n >= 65,536: a Feistel network on b = bit_length(n - 1) bits, repeated until the result is below n (Black, Rogaway 2002).
The low half has h = b - b div 2 bits, the high half b div 2. Rounds r = 0..7:
    r even: high ^= mix(low ^ k_r) mod 2**(b div 2);   r odd: low ^= mix(high ^ k_r) mod 2**h
Why two algorithms? On few bits a Feistel network is far from uniform (chi2/df above 100 on 5 elements with 6 rounds).
Swap-or-not is uniform there, but costs ten times as much.

ORD-3 Integer weights (`weights.py`). Weights are decimals, read exactly, and scaled to integers with gcd 1. If the sum of
these integers is at most 2**20, they are the shares. Otherwise shares are assigned in rounds:
    1. R is 2**20 less the number of sources set aside so far; W is the total weight of the other sources.
    2. Every other source with weight w and w * R < W gets share 1. All sources that meet this test with the R and W of
       this round are set aside together. If there was one, begin again at 1.
    3. The remaining sources divide R by largest remainder; ties go by name.
The result is not reduced by its gcd again. Names are compared by code point, here and everywhere below.

ORD-4 Interleave (`interleave.py`). Sources are sorted by name. Their shares are c_s with sum P; there are k sources, and
D = 2k - 2. Slots n = 1..P of a period are assigned in turn. x_s is the number of earlier slots of source s. Among the sources
with D (c_s n - x_s P) >= P, slot n goes to the one with the smallest deadline
    (P (D x_s + D - 1)) div (D c_s) + 1
and on a tie to the first name. If k = 1, every slot goes to the only source. This is Tijdeman's chairman assignment (1980):
after every slot, each source is within 1 - 1/D of its share of the slots.
Worked example: shares a 3, b 2 -> a b a b a;  shares a 1, b 1, c 2 -> c a b c.

ORD-5 Segments (`schedule.py`). A cursor is a position in the run, counted in sequences. Stages begin at steps, and
cursor(step) is the sum of the batch sizes of all earlier steps. A stage is one segment of the run, or several if sources run
out inside it. A stage without shares of its own changes only the batch size: it continues the segments of the stage before
it as if there were no border. The interleave starts again in each segment; the counts of the sources continue. Sequence n of
the run, in a segment that begins at cursor `start` with P slots per period, is
    q, r = divmod(n - start, P);  source s = the source of slot r + 1
    its number within the source: k = base_s + q c_s + (how many of the slots 1..r belong to s)
where base_s is the number of sequences of s before the segment. A source can be limited to m sequences in all. What happens
when it has given them depends on on_exhausted:
    drop     the segment ends right after the last of them, and the source takes no part in any later segment
    stop     the plan ends at the last whole step before the sequence that would be one too many
    error    a plan in which this happens is rejected
If several sources run out at the same cursor, the one with the first name is dropped first.

ORD-6 Inside a step. Row p of a step with G sequences is sequence cursor(step) + permute(p, G, step key). Row p is a position
in the global batch before the batch is divided among ranks (ORD-8).

ORD-7 `concat` windows (`windows.py`). A source of T tokens has N = T div L sequences per epoch. Its k-th sequence is number i
of epoch e, with e, i = divmod(k, N). It begins at stream position
    (offset + L * permute(i, N, sequence key of e)) mod T,   offset = (offset key of e) mod T
and contains L tokens, continuing at position 0 after the last token of the stream. The wrap-around point counts as a document
boundary.
Worked example: T = 10, L = 3, offset 8: N = 3 windows, on the circle 8 9 0 | 1 2 3 | 4 5 6; token 7 is not used in this epoch.

ORD-8 Division among ranks (`rank_rows.py`). With W ranks and B sequences per microbatch, microbatch j of rank r is the rows
[(j W + r) B, (j W + r) B + B) of the step. So the sequences consumed after any microbatch are a prefix of the run.

ORD-9 Without shuffle every permutation is the identity and every offset is 0.

ORD-10 Sizes. Cursors, token counts and sequence numbers are below 2**62; shares and their products fit int64.

ORD-11 Ends. Under `last_batch: pad` the step in which the run ends is complete: its sequences at or after the end are rows
without pieces. Under `drop` that step is not part of the plan. Rows without pieces, and the unused end of a packed row, are
filled with the plan's pad token. It is one integer: the pad token of the first source, by name, with weight at step 0 (of a
pool: of its first member); if that store has none, its end-of-text token; otherwise 0. It is part of the history of every
step.

ORD-12 Documents by length (`repeats.py`). The documents of a store, sorted by (tokens, document number), have the positions
x = 0..D-1. The documents of one length form a run, described by its tokens t, its first position and its number of documents.
A pool has several stores, its members, sorted by name, each with a repeat factor p/q in lowest terms. A source that is not a
pool is its own only member with p/q = 1. F(a) = (a p) div q. In epoch e the document at position x appears
F(e + x + 1) - F(e + x) times, so after any number of epochs all documents have appeared equally often, within one. The copies
of one epoch are numbered k = 0, 1, ... in the order of their positions:
    copy k is position  ceil((F(e) + k + 1) q / p) - 1 - e;  if that is D or more, copy k is empty in this epoch
The copies are divided into runs once, for epoch 0, so that nothing below depends on the epoch. A run has the copies
[F(first), F(first + number)), the last run those up to ceil(D p / q), and each of its copies has room for the run's t tokens.
In no epoch is copy k a longer document, because its position is greatest in epoch 0.
Worked example: p/q = 1/2, D = 5: 3 copies; epoch 0 has positions 1, 3, none; epoch 1 has positions 0, 2, 4.

ORD-13 Pieces (`classes.py`). A copy with room for t tokens has the pieces j = 0 .. t div L - 1 of length L and, if
v = t mod L > 0, piece j = t div L of length v. Piece j with room v holds tokens [j L, min(j L + v, n)) of the copied
document, which has n tokens; if that range is empty, so is the piece. The pieces with room v form length class v. Its h[v] slots
are numbered by member, run, copy and j, in this order. P = sum of h[v] is the number of pieces.

ORD-14 `best_fit` (`packing.py`). An epoch puts the slots of all classes into exactly N bins of L tokens, in five steps. Steps
2 to 5 are one attempt; attempts are made until one succeeds.
  Step 1, number of bins. B is the number of bins that attempt 6 below fills without shuffle, given P bins and w = P in step 5.
    LB = ceil(sum of v h[v] / L);  q = 1000 if P >= 100,000, otherwise 200
    N = B if LB < 32, otherwise min(P, max(B + ceil(B / (2 q)), LB + ceil(LB / q)))
  Step 2, attempt. With shuffle, attempts 0 to 6 are made in turn, and the first that does not fail is taken. Without shuffle
  only attempt 6 is made. Attempt 6 is best-fit decreasing; it cannot fail, because N >= B.
    attempt                    0     1     2     3     4     5     6
    c, percent                 2     5    10    25    50     -     -
    f, strength of the jitter 38    38    26    12    12     2     0
  Step 3, entries. Each class v is cut into s entries: s = min(h[v], max(1, 16384 div L)), but s = 1 for class L and, without
  shuffle, for every class. Entry i of class v has the slots [i h[v] div s, (i + 1) h[v] div s) and the sort key
    v (2**22 + f u),   u = (counted_key(counted_key(jitter key of the epoch, v), i) >> 48) - 2**15
  Step 4, order and rule. short = sum of v h[v] over v < L. cut is the greatest v <= L such that the sum of u h[u] over u < v is
  at most c (short div 100); in attempts 5 and 6, which have no c, cut = L + 1. The entries are placed in this order:
    first      class L
    then       entries with v >= cut, worst fit
    then       entries with v < cut, best fit
    in each    by falling sort key; equal keys by falling v, then by rising i
  Step 5, placing. Bins with the same content lengths are handled as groups, ordered lists of bins. For each number r of tokens
  left there is a stack of groups. At first, stack L holds one group of N empty bins, and w = P - N: that many slots can still
  join a bin that is not empty. To place the entry (v, slots [a, b)), repeat until a = b:
    1. r:  of the stacks that are not empty and have r >= v (if w = 0: only r = L), best fit takes the smallest r, worst fit
           the greatest. If there is none, the attempt fails.
    2. m, slots per bin:   m = min(r div v, b - a) for best fit, 1 for worst fit; then m = min(m, w + 1) if r = L,
           m = min(m, w) otherwise
    3. j, slots per bin that join others:   j = m - 1 if r = L, otherwise m
    4. k, number of bins:  the top group of stack r has g bins; k = min(g, (b - a) div m); if j > 0, k = min(k, w div j)
    5. The first k bins leave that group; a group without bins leaves its stack. They form a new group. Its bin t (from 0)
       takes the slots [a + t m, a + (t + 1) m). If r - m v > 0, the new group goes on top of stack r - m v.
    6. a = a + k m;  w = w - k j
  So exactly N bins are filled: when w is 0, each of the remaining slots gets a bin to itself.
Worked example: L = 10, h[10] = 1, h[6] = 2, h[4] = 3, h[3] = 1, without shuffle. P = 7, LB = 4, B = 4, so N = 4 and w = 3:
    entry            r    m   j   k   new group                                   w
    10, slots 0      10   1   0   1   1: one bin 10, full                         3
     6, slots 0, 1   10   1   0   2   2: two bins 6, 4 tokens left                3
     4, slots 0..2    4   1   1   2   3: two bins 6 4, full, slots 0 and 1        1
     4, slot 2       10   1   0   1   4: one bin 4, 6 tokens left                 1
     3, slot 0        6   1   1   1   5: one bin 4 3, 3 tokens left               0
The bins, numbered and read as in ORD-15: 10 | 4 6 | 4 6 | 3 4.
`none`: N = P. Each slot has its own bin; classes go from L down to 1, slots rise.
Why from the histogram? It costs the same for 10**4 and for 10**9 documents. Why place the long pieces by worst fit first?
Best-fit decreasing puts equal lengths together, so few documents would have new neighbours in the next epoch (35-86 % of pairs
are repeated on 10,000 documents). Why does `short` not count class L? Full pieces leave no room for others, and would hide how
much there is to spread.

ORD-15 Sequences of a packed source (`packed.py`). e, i = divmod(k, N); sequence k is bin permute(i, N, sequence key of e).
The bins are numbered by the group in which they end, in the order in which the groups were made, then by their place in the
group. A bin contains its placements, the last one first, each with its slots rising. With shuffle its n slots are shuffled
(Fisher, Yates): for t = n - 1 down to 1, slot t and slot ((x >> 32) (t + 1)) >> 32 change places, with
x = counted_key(row key of k, t). Slot y of class v is the slot of ORD-13 with the number
permute(y, h[v], counted_key(class key of e, v)). The pieces follow one another in the row. An empty piece takes no space, and
the rest of the row is padding.

ORD-16 Slices (`slices.py`). A source of packing `best_fit` or `none`, or a member of a pool, can use a slice of the
documents of its store. Three filters apply to the positions of ORD-12, in this order. Each numbers the positions that it
keeps from 0 again, as x of the next filter. A filter that is not given keeps everything.
    documents a..b   keeps the documents of a to b tokens: c positions, which follow one another, from position f on
    take i/n         keeps x if x mod n = i
    fraction p/q     keeps x if ((x + 1) p) div q > (x p) div q; p/q is at most 1, in lowest terms
The slice therefore has D' documents, and its document number y = 0..D'-1 is at position g(y) of the store:
    D' = (max(ceil((c - i) / n), 0) p) div q;   g(y) = f + i + n (ceil((y + 1) q / p) - 1)
ORD-12 to ORD-15 apply to the slice as to a store that has only these documents: D is D', x is y, and a run has the documents
of one length that are in the slice. No key is involved, so the same words mean the same documents in every epoch and every
plan. A slice that keeps every document is the same as none. In the history a slice is f, f + c, i, n, p and q.
Worked example: tokens 1 2 2 3 3 3 4 4 5 9 by position; documents 2..5: f = 1, c = 8, positions 1..8; take 1/2: 2 4 6 8;
fraction 2/3: x = 1 and 2 of x = 0..3, and D' = 2: positions 4 and 6, documents of 3 and 4 tokens.

ORD-17 Batch ramps (`ramps.py`). A ramp changes the batch size from G to H sequences in S steps, in multiples of m, which
divides G and H. G is the batch size that the ramp's stage sets, or else the one that its first step would have without the
ramp. Its step k = 0..S-1 has
    m ((G S + (H - G) k) div (S m))
sequences, and every later step has H. Where the size differs from that of the step before, a stage without shares of its own
begins (ORD-5). So a ramp continues the segments, and is in the history as these stages. A stage that sets shares does not end a
ramp; one that sets a batch size does.
Worked example: G = 8, H = 24, S = 8, m = 4: 8 8 12 12 16 16 20 20 | 24 24 ...

ORD-18 Alignment (`classes.py`). With `align: A`, where A divides L, ORD-13 counts the pieces of a copy as if it had room for
ceil(t / A) A tokens instead of t. So each room v is a multiple of A. The tokens of a piece follow from v as before. In the row,
a piece of m tokens takes ceil(m / A) A positions: its tokens, then padding. The last piece takes the rest of the row as well.
Windows have no room for padding, so this does not apply to `concat`.
Worked example: L = 16, A = 8, one copy each of documents of 5, 13 and 20 tokens. The rooms are 8, 16, and 16 and 8. Class 16
has the slots 0 (13 tokens) and 1 (the first 16 of 20); class 8 has the slots 0 (5 tokens) and 1 (the last 4 of 20). P = 4, LB =
3, N = 3. A row with both slots of class 8, in this order, has 5 tokens, 3 of padding, 4 tokens, 4 of padding.

ORD-19 Balance (`balance.py`). Without `balance`, ORD-8 divides a step. With it, rows are dealt to ranks by cost. What a step
contains, and the numbers of its rows (ORD-6), stay the same. A plan has two integers, a >= 1 and b >= 0. Row p costs
    c(p) = a (sum of v v over its pieces of v tokens) + b L
The tokens of a piece are its room (ORD-13, also if it holds fewer tokens or none in this epoch) and, under `concat`, its
tokens in the window. The G rows of the step, by falling cost and then by rising p, are at the places t = 0..G-1. A microbatch
of W ranks with B rows each takes the places s..s + W B - 1; s is 0 for the first microbatch of a step, and each microbatch
begins where the one before it ended. With j = s div (W B), place s + u goes, for u = 0..W B - 1, to
    row i of the rank's microbatch, i = u div W;   rank w if i + j is even, otherwise rank W - 1 - w;   w = u mod W
If one rank gets the whole step as one microbatch, there is nothing to deal, and its rows are in the order of p.
So the rows consumed after any microbatch are a prefix of the places, and a run that continues inside a step with another W
or B deals the rest. Only a run with other integers a or b, or without balance, cannot continue there: it has consumed other rows.
Worked example: W = 2, B = 2, and rows that cost 5 9 1 7 9 3 3 8:
    places     0 1 2 3 4 5 6 7
    row        1 4 7 3 0 5 6 2
    cost       9 9 8 7 5 3 3 1
    rank       0 1 1 0 1 0 0 1      microbatch 0: rank 0 has the rows 1 3, rank 1 has 4 7;  microbatch 1: 5 6 and 0 2

ORD-20 Lanes (`lanes.py`). With shuffle, a source of packing `concat` can have a locality: two integers, s >= 1 sequences per
block and W = 1..2**24 lanes. Then another permutation of range(N) takes the place of permute(i, N, sequence key of e) in
ORD-7. It maps number i of epoch e to a window of the epoch; window w begins at stream position (offset + L w) mod T. Nothing
else changes. The windows are cut into blocks:
    nb = ceil(N / s);  r = N - (nb - 1) s
    block b, 0 <= b < nb, is the windows b s .. b s + size(b) - 1;  size(b) = s, but size(nb - 1) = r
The line is all blocks one after the other: block permute(p, nb, block key of e) comes after p other blocks. Inside a block the
windows are permuted too. So the line has the N places x = 0..N-1. It is cut into V = min(W, nb) stretches, and successive
numbers take one place from each stretch in turn. The first t stretches have a + 1 places, the others a:
    a, t = divmod(N, V);  q, j = divmod(i, V);  x = j a + min(j, t) + q
The window at place x follows from p*, the place of the last block among all blocks: permute(p*, nb, block key of e) = nb - 1.
    y = x + s - r if x >= p* s + r, otherwise x
    p, o = divmod(y, s);  b = permute(p, nb, block key of e)
    window = b s + permute(o, size(b), counted_key(place key of e, b))
Number i belongs to the lane (j f) mod V in every epoch. f is the least integer that is at least (618034 V) div 1000000 and has
no common divisor with V but 1; if V < 3, f = 1. So the lanes of any few successive numbers are spread evenly over range(V).
In the history a locality is min(s, N) and V, because all larger values give the same order.
Worked example: seed 0, source "web", epoch 0, N = 10, s = 3, W = 3: nb = 4, r = 1, p* = 2. The blocks are in the order
2 0 3 1, and a = 3, t = 1:
    line         8 6 7   1 0 2   9   4 5 3
    stretches    8 6 7 1   0 2 9   4 5 3
    windows of the numbers 0..9:   8 0 4 6 2 5 7 9 3 1
    lanes of these numbers, f = 1: 0 1 2 0 1 2 0 1 2 0
With V = 8, f = 5, and the lanes of the numbers 0..7 are 0 5 2 7 4 1 6 3.

ORD-21 Node groups (`node_groups.py`). The W ranks of a run can be R node groups: the ranks r with r div (W div R) = g are group g.
If R does not divide W, R = 1. If R = 1, or if no source with a share in the stage of the step has a locality, a step is divided
as in ORD-8 or ORD-19. Otherwise each group gets G / R rows of the step, as far as possible those of its own lanes. What a step
contains, and the numbers of its rows (ORD-6), stay the same.
Owners. The sources with a share in the stage that have a locality are numbered m = 0..M-1, by name. A row with number i of an
epoch of source m, which has V lanes with the stride f (ORD-20), is at the place
    z = ((i + (m V) div M) f) mod V
on the circle of its source. Group g owns the places z with (g V) div R <= z < ((g + 1) V) div R of every circle, so the row
belongs to group ((z + 1) R - 1) div V. Rows of other sources and rows without pieces belong to no group.
Order. Rows with a place come first, by z, then source name, then sequence number k; rows of other sources next, by source name,
then k; rows without pieces last, by p.
Dealing. Each group keeps the first G / R of its own rows in this order, or all of them if there are fewer. The other rows are
put in line: those of group 0, those of group 1, and so on, then the rows of no group; in the order above in each case. From this
line, group 0 takes as many rows as it lacks, then group 1, and so on. T(g, 0..G/R-1) are the rows of group g, in the order above.
Division. With w = W div R ranks per group, and B rows per microbatch, microbatch j of rank g w + h is the rows
    T(g, (j w + h) B + i), i = 0..B-1
With `balance`, ORD-19 deals the rows of each group to its ranks as it deals a step: by falling cost, then in the order T, with w
for W, and G / R rows; each microbatch begins at s / R. If a group is one rank that gets all of them as one microbatch, their
order is T. So the rows consumed after any microbatch are the same part of every group's rows, and a run that continues inside a
step with another W or B, but the same R, deals the rest. With another R it cannot: it has consumed other rows.
Why the term (m V) div M? Sources with equal shares and equal V would otherwise be at the same place at the same time, and most
rows of a step would belong to the same groups. Worked example: one source, V = 4, f = 3, R = 2, W = 2, B = 2, and rows whose
numbers i are 5 0 7 2: the places are 3 0 1 2. Group 0 owns the places 0 and 1, so it gets the rows 1 2, and group 1 gets 3 0.
With the numbers 0 4 7 2, the places are 0 0 1 2: three rows belong to group 0. It keeps the rows 0 1, and row 2 goes to group 1,
where it is before row 3.

Not promised: the same order across versions of this text. A change of any rule above is a new ORDER_VERSION.
Why not numpy's Generator? Its streams are stable, its shuffles are not (NEP 19), and an array of n indices is not O(1).
Why interleave before the division among ranks? Slicing first makes all ranks draw from the same source in the same step.
"""

ORDER_VERSION = 1
