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

// y[h] = y[h]*was[h] + now[h] * sum_i p[h][i] * v[at[i]]
INLINE void blend(const int nq, GLOBAL float *y, GLOBAL const value *v, const long *at, float (*p)[CHUNK], int n, int E,
                  const float *was, const float *now) {
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
                GLOBAL float *z = y + h * E + e + 8 * j;
                STORE(float8u, z, fma8(LOAD(float8u, z), was[h], a[h][j] * now[h]));
            }
    }
    for (; e < E; e++)
        UNROLL for (int h = 0; h < nq; h++) {
            float a = 0.0f;
            for (int i = 0; i < n; i++) a = FMA(p[h][i], VALUE1(v + at[i] + e), a);
            y[h * E + e] = FMA(y[h * E + e], was[h], a * now[h]);
        }
}

// nq query heads of one row, all of one key head, over n cells
INLINE void attend(const int nq, GLOBAL const float *q, GLOBAL const key *k, GLOBAL const value *v,
                   GLOBAL const int *cells, int n, int G, int D, int E, int C, float scale, float softcap,
                   GLOBAL const float *sinks, GLOBAL float *y) {
    float M[NQ], S[NQ], was[NQ], now[NQ], x[NQ][CHUNK];
    long at_k[CHUNK], at_v[CHUNK];
    for (int h = 0; h < nq; h++) { M[h] = sinks ? sinks[h] : NONE; S[h] = sinks ? 1.0f : 0.0f; }
    for (int i = 0; i < nq * E; i++) y[i] = 0.0f;
    for (int from = 0; from < n; from += CHUNK) {
        int len = 0;
        for (int i = from; i < min(n, from + CHUNK); i++) {
            int c = cells[i];
            if (c < 0 || c >= C) continue;
            at_k[len] = (long)c * G * D;
            at_v[len++] = (long)c * G * E;
        }
        if (!len) continue;
        for (int i = len; i & 3; i++) at_k[i] = at_k[0];
        scores(nq, q, k, at_k, len, D, scale, x);
        for (int h = 0; h < nq; h++) {
            float2 ms = exponentials(x[h], len, softcap);
            float top = FMAX(M[h], ms.s0);
            was[h] = EXP(M[h] - top);
            now[h] = EXP(ms.s0 - top);
            S[h] = FMA(S[h], was[h], ms.s1 * now[h]);
            M[h] = top;
        }
        blend(nq, y, v, at_v, x, len, E, was, now);
    }
    for (int h = 0; h < nq; h++)
        for (int e = 0; e < E; e++) y[h * E + e] = S[h] == 0.0f ? 0.0f : y[h * E + e] / S[h];
}

INLINE void attention_body(int part, int parts, int T, int H, int G, int D, int E, int C, int n,
                           GLOBAL const float *RESTRICT q, GLOBAL const key *RESTRICT k, GLOBAL const value *RESTRICT v,
                           GLOBAL const int *RESTRICT cells, GLOBAL const int *RESTRICT ranges, float scale,
                           float softcap, GLOBAL const float *RESTRICT sinks, GLOBAL float *RESTRICT y) {
    int R = H / G, passes = (R + NQ - 1) / NQ;
    FOR_RUN(item, T * G * passes) {
        int t = item / (G * passes), g = item / passes % G, h = g * R + item % passes * NQ, nq = min(NQ, g * R + R - h);
        int from = max(ranges[2 * t], 0), to = min(ranges[2 * t + 1], n);
        long row = (long)t * H + h;
        GLOBAL const float *s = sinks ? sinks + h : sinks;
        GLOBAL const key *k0 = k + g * D;
        GLOBAL const value *v0 = v + g * E;
        switch (nq) {
            case 1: attend(1, q + row * D, k0, v0, cells + from, to - from, G, D, E, C, scale, softcap, s, y + row * E); break;
            case 2: attend(2, q + row * D, k0, v0, cells + from, to - from, G, D, E, C, scale, softcap, s, y + row * E); break;
            case 3: attend(3, q + row * D, k0, v0, cells + from, to - from, G, D, E, C, scale, softcap, s, y + row * E); break;
        }
    }
}
KERNEL void attention(int T, int H, int G, int D, int E, int C, int n, GLOBAL const float *RESTRICT q,
                      GLOBAL const key *RESTRICT k, GLOBAL const value *RESTRICT v, GLOBAL const int *RESTRICT cells,
                      GLOBAL const int *RESTRICT ranges, float scale, float softcap, GLOBAL const float *RESTRICT sinks,
                      GLOBAL float *RESTRICT y) {
    attention_body(PART, PARTS, T, H, G, D, E, C, n, q, k, v, cells, ranges, scale, softcap, sinks, y);
}
