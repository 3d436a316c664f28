// Attention of each row over its own list of cells, in the order of the list.
//
// The list is cut into chunks of CHUNK entries, counted from its start. A chunk gives its largest score, the sum of its
// exponentials and the sum of values they weigh; chunks are merged first to last. So the order of every sum depends on
// the length of the list alone. -DK_F16, -DV_F16: keys or values are half floats.
#include "prelude.h"

#define CHUNK 64
#define HEADS 8       // query heads that share a pass over a key head
#define NONE (-INFINITY)

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

// x[i] = scale * q.k[at[i]] for i < n, in eights; `at` and `x` have room up to the next multiple of 8
INLINE void scores(GLOBAL const float *q, GLOBAL const key *k, const int *at, int n, int D, long stride, float scale,
                   float *x) {
    for (int i = 0; i < n; i += 8) {
        GLOBAL const key *p[8];
        float8 a[8];
        for (int j = 0; j < 8; j++) { p[j] = k + at[i + j] * stride; a[j] = 0.0f; }
        int d = 0;
        for (; d + 8 <= D; d += 8) {
            float8 u = LOAD(float8u, q + d);
            for (int j = 0; j < 8; j++) a[j] = fma8(u, KEY8(p[j] + d), a[j]);
        }
        for (int j = 0; j < 8; j++) {
            float s = sum8(a[j]);
            for (int e = d; e < D; e++) s = FMA(q[e], KEY1(p[j] + e), s);
            x[i + j] = s * scale;
        }
    }
}

// y = y*was + now * sum_i p[i] * v[at[i]]
INLINE void blend(GLOBAL float *y, GLOBAL const value *v, const int *at, const float *p, int n, int E, long stride,
                  float was, float now) {
    int e = 0;
    for (; e + 32 <= E; e += 32) {
        float8 a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
        for (int i = 0; i < n; i++) {
            GLOBAL const value *w = v + at[i] * stride + e;
            float8 u = p[i];
            a = fma8(u, VALUE8(w), a);
            b = fma8(u, VALUE8(w + 8), b);
            c = fma8(u, VALUE8(w + 16), c);
            d = fma8(u, VALUE8(w + 24), d);
        }
        STORE(float8u, y + e, fma8(LOAD(float8u, y + e), was, a * now));
        STORE(float8u, y + e + 8, fma8(LOAD(float8u, y + e + 8), was, b * now));
        STORE(float8u, y + e + 16, fma8(LOAD(float8u, y + e + 16), was, c * now));
        STORE(float8u, y + e + 24, fma8(LOAD(float8u, y + e + 24), was, d * now));
    }
    for (; e < E; e++) {
        float a = 0.0f;
        for (int i = 0; i < n; i++) a = FMA(p[i], VALUE1(v + at[i] * stride + e), a);
        y[e] = FMA(y[e], was, a * now);
    }
}

// Up to HEADS query heads of one row, all of one key head
INLINE void attend(GLOBAL const float *q, GLOBAL const key *k, GLOBAL const value *v, GLOBAL const int *cells, int n,
                   int heads, int G, int D, int E, int C, float scale, float softcap, GLOBAL const float *sinks,
                   GLOBAL float *y) {
    float M[HEADS], S[HEADS], x[CHUNK];
    int at[CHUNK];
    for (int h = 0; h < heads; h++) { M[h] = sinks ? sinks[h] : NONE; S[h] = sinks ? 1.0f : 0.0f; }
    for (int i = 0; i < heads * E; i++) y[i] = 0.0f;
    for (int from = 0; from < n; from += CHUNK) {
        int len = 0;
        for (int i = from; i < min(n, from + CHUNK); i++)
            if (cells[i] >= 0 && cells[i] < C) at[len++] = cells[i];
        if (!len) continue;
        for (int i = len; i & 7; i++) at[i] = at[0];
        for (int h = 0; h < heads; h++) {
            scores(q + h * D, k, at, len, D, (long)G * D, scale, x);
            float8 top = NONE, sum = 0.0f;
            if (softcap != 0.0f)
                for (int i = 0; i < len; i += 8) *(float8u *)(x + i) = softcap * TANH(*(float8u *)(x + i) / softcap);
            for (int i = len; i & 7; i++) x[i] = NONE;
            for (int i = 0; i < len; i += 8) top = fmax(top, *(float8u *)(x + i));
            float m = max8(top), M1 = FMAX(M[h], m);
            for (int i = 0; i < len; i += 8) {
                float8 p = EXP(*(float8u *)(x + i) - m);
                *(float8u *)(x + i) = p;
                sum += p;
            }
            float was = EXP(M[h] - M1), now = EXP(m - M1);
            blend(y + h * E, v, at, x, len, E, (long)G * E, was, now);
            S[h] = FMA(S[h], was, sum8(sum) * now);
            M[h] = M1;
        }
    }
    for (int h = 0; h < heads; h++)
        for (int e = 0; e < E; e++) y[h * E + e] = S[h] == 0.0f ? 0.0f : y[h * E + e] / S[h];
}

INLINE void attention_body(int part, int parts, int T, int H, int G, int D, int E, int C, int n,
                           GLOBAL const float *RESTRICT q, GLOBAL const key *RESTRICT k, GLOBAL const value *RESTRICT v,
                           GLOBAL const int *RESTRICT cells, GLOBAL const int *RESTRICT ranges, float scale,
                           float softcap, GLOBAL const float *RESTRICT sinks, GLOBAL float *RESTRICT y) {
    int R = H / G, passes = (R + HEADS - 1) / HEADS;
    FOR_RUN(item, T * G * passes) {
        int t = item / (G * passes), g = item / passes % G, h = g * R + item % passes * HEADS;
        int from = max(ranges[2 * t], 0), to = min(ranges[2 * t + 1], n);
        attend(q + ((long)t * H + h) * D, k + g * D, v + g * E, cells + from, to - from, min(HEADS, g * R + R - h), G, D,
               E, C, scale, softcap, sinks ? sinks + h : sinks, y + ((long)t * H + h) * E);
    }
}
KERNEL void attention(int T, int H, int G, int D, int E, int C, int n, GLOBAL const float *RESTRICT q,
                      GLOBAL const key *RESTRICT k, GLOBAL const value *RESTRICT v, GLOBAL const int *RESTRICT cells,
                      GLOBAL const int *RESTRICT ranges, float scale, float softcap, GLOBAL const float *RESTRICT sinks,
                      GLOBAL float *RESTRICT y) {
    attention_body(PART, PARTS, T, H, G, D, E, C, n, q, k, v, cells, ranges, scale, softcap, sinks, y);
}
