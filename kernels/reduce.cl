// Over the last axis: softmax, the place of the largest, the k largest. A nan counts as -inf when looking for the largest.
#include "prelude.h"

#define LEAST (-INFINITY)
INLINE float no_nan(float x) { return x == x ? x : LEAST; }

INLINE float row_max(GLOBAL const float *x, int K) {
    float8 m = LEAST;
    int i = 0;
    for (; i + 8 <= K; i += 8) m = fmax(m, LOAD(float8u, x + i));
    float top = max8(m);
    for (; i < K; i++) top = FMAX(top, x[i]);
    return top;
}

INLINE void softmax_body(int part, int parts, int rows, int K, GLOBAL const float *RESTRICT x0, GLOBAL float *RESTRICT y0) {
    FOR_RUN(r, rows) {
        GLOBAL const float *x = x0 + (long)r * K;
        GLOBAL float *y = y0 + (long)r * K;
        float top = row_max(x, K), s = 0.0f;
        float8 sum = 0.0f;
        int i = 0;
        for (; i + 8 <= K; i += 8) {
            float8 e = EXP(LOAD(float8u, x + i) - top);
            STORE(float8u, y + i, e);
            sum += e;
        }
        for (; i < K; i++) s += y[i] = EXP(x[i] - top);
        s += sum8(sum);
        for (i = 0; i + 8 <= K; i += 8) STORE(float8u, y + i, LOAD(float8u, y + i) / s);
        for (; i < K; i++) y[i] /= s;
    }
}
KERNEL void softmax(int rows, int K, GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y) {
    softmax_body(PART, PARTS, rows, K, x, y);
}
STEP(softmax, softmax_body(part, parts, INT(0), INT(1), PTR(2), PTR(3)))

INLINE void argmax_body(int part, int parts, int rows, int K, GLOBAL const float *RESTRICT x0, GLOBAL int *RESTRICT ids) {
    FOR_RUN(r, rows) {
        GLOBAL const float *x = x0 + (long)r * K;
        float top = row_max(x, K);
        int i = 0;
        if (top > LEAST) while (x[i] != top) i++;
        ids[r] = i;
    }
}
KERNEL void argmax(int rows, int K, GLOBAL const float *RESTRICT x, GLOBAL int *RESTRICT ids) {
    argmax_body(PART, PARTS, rows, K, x, ids);
}
STEP(argmax, argmax_body(part, parts, INT(0), INT(1), PTR(2), PTR(3)))

// The k largest: a heap of k with the worst on top, which in the end is taken apart from the back.
// Worse: smaller, or equal with a higher id.
INLINE int worse(float a, int i, float b, int j) { return a < b || (a == b && i > j); }
INLINE void sift(GLOBAL float *v, GLOBAL int *id, int n, int at) {
    float a = v[at];
    int i = id[at];
    for (int c = 2 * at + 1; c < n; c = 2 * at + 1) {
        if (c + 1 < n && worse(v[c + 1], id[c + 1], v[c], id[c])) c++;
        if (!worse(v[c], id[c], a, i)) break;
        v[at] = v[c]; id[at] = id[c]; at = c;
    }
    v[at] = a; id[at] = i;
}

INLINE void top_k_body(int part, int parts, int rows, int K, int k, GLOBAL const float *RESTRICT x0,
                       GLOBAL float *RESTRICT values, GLOBAL int *RESTRICT ids) {
    FOR_RUN(r, rows) {
        GLOBAL const float *x = x0 + (long)r * K;
        GLOBAL float *v = values + (long)r * k;
        GLOBAL int *id = ids + (long)r * k;
        for (int i = 0; i < k; i++) { v[i] = no_nan(x[i]); id[i] = i; }
        for (int i = k / 2 - 1; i >= 0; i--) sift(v, id, k, i);
        for (int i = k; i < K; i++)
            if (x[i] > v[0]) { v[0] = x[i]; id[0] = i; sift(v, id, k, 0); }
        for (int n = k - 1; n > 0; n--) {
            float a = v[0]; v[0] = v[n]; v[n] = a;
            int i = id[0]; id[0] = id[n]; id[n] = i;
            sift(v, id, n, 0);
        }
    }
}
KERNEL void top_k(int rows, int K, int k, GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT values,
                  GLOBAL int *RESTRICT ids) {
    top_k_body(PART, PARTS, rows, K, k, x, values, ids);
}
STEP(top_k, top_k_body(part, parts, INT(0), INT(1), INT(2), PTR(3), PTR(4), PTR(5)))
