// Attention of each row over its own list of cells, in the order of the list.
//
// The list is cut into chunks of CHUNK entries, counted from its start. A chunk gives its largest score, the sum of its
// exponentials and the sum of values they weigh; chunks are merged first to last. So the order of every sum depends on
// the length of the list alone. -DK_F16, -DV_F16: keys or values are half floats.
#include "prelude.h"

#define CHUNK 64
#define NQ 3          // query heads that share one pass over a key head
#define NONE (-INFINITY)
#define UNROLL _Pragma("unroll")

#ifdef K_F16
typedef ushort key;
#define KEY1(p) h2f(*(p))
#define KEY8(p) h2f8(LOAD(ushort8u, p))
#else
typedef float key;
#define KEY1(p) (*(p))
#define KEY8(p) LOAD(float8u, p)
#endif
#ifdef V_F16
typedef ushort value;
#define VALUE1(p) h2f(*(p))
#define VALUE8(p) h2f8(LOAD(ushort8u, p))
#else
typedef float value;
#define VALUE1(p) (*(p))
#define VALUE8(p) LOAD(float8u, p)
#endif

// Sums of pairs of lanes, those of a first: (a0+a1, a2+a3, b0+b1, b2+b3 | the same of the upper halves)
INLINE float8 pairs(float8 a, float8 b) {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

// x[h][i] = scale * q[h].k[at[i]] for nq query heads and i < n, four cells at a time; `at` is filled up to a multiple of 4
INLINE void scores(const int nq, GLOBAL const float *q, GLOBAL const key *k, const long *at, int n, int D, float scale,
                   float (*x)[CHUNK]) {
    for (int i = 0; i < n; i += 4) {
        GLOBAL const key *k0 = k + at[i], *k1 = k + at[i + 1], *k2 = k + at[i + 2], *k3 = k + at[i + 3];
        float8 a[NQ][4];
        UNROLL for (int h = 0; h < nq; h++) a[h][0] = a[h][1] = a[h][2] = a[h][3] = 0.0f;
        int d = 0;
        for (; d + 8 <= D; d += 8) {
            float8 u0 = KEY8(k0 + d), u1 = KEY8(k1 + d), u2 = KEY8(k2 + d), u3 = KEY8(k3 + d);
            UNROLL for (int h = 0; h < nq; h++) {
                float8 w = LOAD(float8u, q + h * D + d);
                a[h][0] = fma8(w, u0, a[h][0]);
                a[h][1] = fma8(w, u1, a[h][1]);
                a[h][2] = fma8(w, u2, a[h][2]);
                a[h][3] = fma8(w, u3, a[h][3]);
            }
        }
        UNROLL for (int h = 0; h < nq; h++) {
            float8 b = pairs(pairs(a[h][0], a[h][1]), pairs(a[h][2], a[h][3]));
            float4 s = b.lo + b.hi;
            for (int e = d; e < D; e++)
                s = fma4((float4)(KEY1(k0 + e), KEY1(k1 + e), KEY1(k2 + e), KEY1(k3 + e)), q[h * D + e], s);
            *(float4u *)(x[h] + i) = s * scale;
        }
    }
}

// x[0..n) becomes exp(x - max); their sum and the maximum are returned
INLINE float2 exponentials(float *x, int n, float softcap) {
    if (softcap != 0.0f)
        for (int i = 0; i < n; i += 8) *(float8u *)(x + i) = softcap * TANH(*(float8u *)(x + i) / softcap);
    for (int i = n; i & 7; i++) x[i] = NONE;
    float8 top = NONE, sum = 0.0f;
    for (int i = 0; i < n; i += 8) top = fmax(top, *(float8u *)(x + i));
    float m = max8(top);
    for (int i = 0; i < n; i += 8) {
        float8 p = EXP(*(float8u *)(x + i) - m);
        *(float8u *)(x + i) = p;
        sum += p;
    }
    return (float2)(m, sum8(sum));
}

// a = sum_i p[h][i] * v[at[i]]; then y[h] = y[h]*was[h] + a*now[h], or y[h] = a where y is fresh
INLINE void blend(const int nq, const int fresh, GLOBAL float *y, int stride, GLOBAL const value *v, const long *at,
                  float (*p)[CHUNK], int n, int E, const float *was, const float *now) {
    int e = 0;
    for (; e + 32 <= E; e += 32) {
        float8 a[NQ][4];
        UNROLL for (int h = 0; h < nq; h++) a[h][0] = a[h][1] = a[h][2] = a[h][3] = 0.0f;
        for (int i = 0; i < n; i++) {
            GLOBAL const value *w = v + at[i] + e;
            float8 u0 = VALUE8(w), u1 = VALUE8(w + 8), u2 = VALUE8(w + 16), u3 = VALUE8(w + 24);
            UNROLL for (int h = 0; h < nq; h++) {
                float8 s = p[h][i];
                a[h][0] = fma8(s, u0, a[h][0]);
                a[h][1] = fma8(s, u1, a[h][1]);
                a[h][2] = fma8(s, u2, a[h][2]);
                a[h][3] = fma8(s, u3, a[h][3]);
            }
        }
        UNROLL for (int h = 0; h < nq; h++)
            UNROLL for (int j = 0; j < 4; j++) {
                GLOBAL float *z = y + h * stride + e + 8 * j;
                if (fresh) STORE(float8u, z, a[h][j]);
                else STORE(float8u, z, fma8(LOAD(float8u, z), was[h], a[h][j] * now[h]));
            }
    }
    for (; e < E; e++)
        UNROLL for (int h = 0; h < nq; h++) {
            GLOBAL float *z = y + h * stride + e;
            float a = 0.0f;
            for (int i = 0; i < n; i++) a = FMA(p[h][i], VALUE1(v + at[i] + e), a);
            *z = fresh ? a : FMA(*z, was[h], a * now[h]);
        }
}

// Where the cells of a chunk begin, those that are none left out; how many are left
INLINE int places(GLOBAL const int *cells, int n, int C, int K, int V, long *at_k, long *at_v) {
    int len = 0;
    for (int i = 0; i < n; i++) {
        if (cells[i] < 0 || cells[i] >= C) continue;
        at_k[len] = (long)cells[i] * K;
        at_v[len++] = (long)cells[i] * V;
    }
    if (len) for (int i = len; i & 3; i++) at_k[i] = at_k[0];
    return len;
}

// The state of a head: largest score M and sum S so far. A chunk (m, s) joins: old values count `was`, the chunk's `now`
INLINE void join(float *M, float *S, float m, float s, float *was, float *now) {
    float top = FMAX(*M, m);
    *was = EXP(*M - top);
    *now = EXP(m - top);
    *S = FMA(*S, *was, s * *now);
    *M = top;
}
INLINE float share(float y, float S) { return S == 0.0f ? 0.0f : y / S; }

// What a launch works on; a pass is up to NQ query heads of one row that share a key head
typedef struct {
    int T, H, G, D, E, C, n;
    GLOBAL const float *q;
    GLOBAL const key *k;
    GLOBAL const value *v;
    GLOBAL const int *cells, *ranges;
    float scale, softcap;
    GLOBAL const float *sinks;
} problem;

INLINE int passes_of(const problem *a) { return a->G * ((a->H / a->G + NQ - 1) / NQ); }
INLINE int first_head(const problem *a, int pass) {   // of a pass
    int R = a->H / a->G, per = (R + NQ - 1) / NQ;
    return pass / per * R + pass % per * NQ;
}
INLINE int heads_in(const problem *a, int h) { int R = a->H / a->G; return min(NQ, R - h % R); }
INLINE int from_of(const problem *a, int t) { return max(a->ranges[2 * t], 0); }
INLINE int length_of(const problem *a, int t) { return max(min(a->ranges[2 * t + 1], a->n) - from_of(a, t), 0); }

// All chunks of nq heads of row t, first to last
INLINE void whole(const int nq, const problem *a, int t, int h, GLOBAL float *y) {
    int D = a->D, E = a->E, g = h / (a->H / a->G), n = length_of(a, t);
    GLOBAL const float *q = a->q + ((long)t * a->H + h) * D;
    GLOBAL const int *cells = a->cells + from_of(a, t);
    float M[NQ], S[NQ], was[NQ], now[NQ], x[NQ][CHUNK];
    long at_k[CHUNK], at_v[CHUNK];
    for (int i = 0; i < nq; i++) { M[i] = a->sinks ? a->sinks[h + i] : NONE; S[i] = a->sinks ? 1.0f : 0.0f; }
    for (int i = 0; i < nq * E; i++) y[i] = 0.0f;
    for (int from = 0; from < n; from += CHUNK) {
        int len = places(cells + from, min(CHUNK, n - from), a->C, a->G * D, a->G * E, at_k, at_v);
        if (!len) continue;
        scores(nq, q, a->k + g * D, at_k, len, D, a->scale, x);
        for (int i = 0; i < nq; i++) {
            float2 ms = exponentials(x[i], len, a->softcap);
            join(M + i, S + i, ms.s0, ms.s1, was + i, now + i);
        }
        blend(nq, 0, y, E, a->v + g * E, at_v, x, len, E, was, now);
    }
    for (int i = 0; i < nq; i++)
        for (int e = 0; e < E; e++) y[i * E + e] = share(y[i * E + e], S[i]);
}

INLINE void attention_body(int part, int parts, const problem *a, GLOBAL float *RESTRICT y0) {
    int passes = passes_of(a);
    FOR_RUN(item, a->T * passes) {
        int t = item / passes, h = first_head(a, item % passes);
        GLOBAL float *y = y0 + ((long)t * a->H + h) * a->E;
        switch (heads_in(a, h)) {
            case 1: whole(1, a, t, h, y); break;
            case 2: whole(2, a, t, h, y); break;
            case 3: whole(3, a, t, h, y); break;
        }
    }
}

// The same in two steps, for few rows and long lists: chunks side by side, each leaving E values, m and s for each
// head in `parts`; then the chunks of a head are joined, first to last.
INLINE void one_chunk(const int nq, const problem *a, int t, int h, int chunk, GLOBAL float *out) {
    int D = a->D, E = a->E, g = h / (a->H / a->G), from = chunk * CHUNK;
    float x[NQ][CHUNK];
    long at_k[CHUNK], at_v[CHUNK];
    int len = places(a->cells + from_of(a, t) + from, min(CHUNK, length_of(a, t) - from), a->C, a->G * D, a->G * E, at_k, at_v);
    for (int i = 0; i < nq; i++) out[i * (E + 2) + E] = NONE;
    if (!len) return;
    scores(nq, a->q + ((long)t * a->H + h) * D, a->k + g * D, at_k, len, D, a->scale, x);
    for (int i = 0; i < nq; i++) {
        float2 ms = exponentials(x[i], len, a->softcap);
        out[i * (E + 2) + E] = ms.s0;
        out[i * (E + 2) + E + 1] = ms.s1;
    }
    blend(nq, 1, out, E + 2, a->v + g * E, at_v, x, len, E, 0, 0);
}

INLINE int chunks_of(const problem *a, int t) { return (length_of(a, t) + CHUNK - 1) / CHUNK; }

INLINE void attention_chunks_body(int part, int parts, const problem *a, int room, GLOBAL float *RESTRICT partial) {
    int passes = passes_of(a), total = 0, t = 0, before = 0;
    for (int i = 0; i < a->T; i++) total += chunks_of(a, i);
    FOR_RUN(item, total * passes) {
        while (item >= (before + chunks_of(a, t)) * passes) before += chunks_of(a, t++);
        int chunk = (item - before * passes) / passes, h = first_head(a, item % passes);
        GLOBAL float *out = partial + (((long)t * room + chunk) * a->H + h) * (a->E + 2);
        switch (heads_in(a, h)) {
            case 1: one_chunk(1, a, t, h, chunk, out); break;
            case 2: one_chunk(2, a, t, h, chunk, out); break;
            case 3: one_chunk(3, a, t, h, chunk, out); break;
        }
    }
}

INLINE void attention_join_body(int part, int parts, const problem *a, int room, GLOBAL const float *RESTRICT partial,
                                GLOBAL float *RESTRICT y0) {
    int E = a->E;
    FOR_RUN(item, a->T * a->H) {
        int t = item / a->H, h = item % a->H;
        GLOBAL float *y = y0 + (long)item * E;
        float M = a->sinks ? a->sinks[h] : NONE, S = a->sinks ? 1.0f : 0.0f, was, now;
        for (int e = 0; e < E; e++) y[e] = 0.0f;
        for (int chunk = 0; chunk < chunks_of(a, t); chunk++) {
            GLOBAL const float *in = partial + (((long)t * room + chunk) * a->H + h) * (E + 2);
            if (in[E] == NONE) continue;
            join(&M, &S, in[E], in[E + 1], &was, &now);
            for (int e = 0; e < E; e++) y[e] = FMA(y[e], was, in[e] * now);
        }
        for (int e = 0; e < E; e++) y[e] = share(y[e], S);
    }
}

#define ARGS int T, int H, int G, int D, int E, int C, int n, GLOBAL const float *RESTRICT q, GLOBAL const key *RESTRICT k, \
    GLOBAL const value *RESTRICT v, GLOBAL const int *RESTRICT cells, GLOBAL const int *RESTRICT ranges, float scale, \
    float softcap, GLOBAL const float *RESTRICT sinks
#define PROBLEM problem a = {T, H, G, D, E, C, n, q, k, v, cells, ranges, scale, softcap, sinks}

#define LISTED problem p = {INT(0), INT(1), INT(2), INT(3), INT(4), INT(5), INT(6), PTR(7), PTR(8), PTR(9), PTR(10), PTR(11), \
    FLOAT(12), FLOAT(13), PTR(14)}

KERNEL void attention(ARGS, GLOBAL float *RESTRICT y) {
    PROBLEM;
    attention_body(PART, PARTS, &a, y);
}
STEP(attention, LISTED; attention_body(part, parts, &p, PTR(15)))
KERNEL void attention_chunks(ARGS, int room, GLOBAL float *RESTRICT partial) {
    PROBLEM;
    attention_chunks_body(PART, PARTS, &a, room, partial);
}
STEP(attention_chunks, LISTED; attention_chunks_body(part, parts, &p, INT(15), PTR(16)))
KERNEL void attention_join(ARGS, int room, GLOBAL const float *RESTRICT partial, GLOBAL float *RESTRICT y) {
    PROBLEM;
    attention_join_body(PART, PARTS, &a, room, partial, y);
}
STEP(attention_join, LISTED; attention_join_body(part, parts, &p, INT(15), PTR(16), PTR(17)))
