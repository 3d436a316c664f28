// Element by element: sums, products, gates. Work is cut into blocks of BLOCK elements; the last one may be short.
#include "prelude.h"

#define BLOCK 512
#define BLOCKS(n) (((n) + BLOCK - 1) / BLOCK)

#ifdef __CUDACC_RTC__
typedef float vec;
#define W 1
#define EACH(i, b, n) for (int i = (b) * BLOCK + LID(0); i < min((n), (b) * BLOCK + BLOCK); i += LSZ(0))
#define GET(x, i, n) (x)[i]
#define PUT(y, i, n, v) ((y)[i] = (v))
#else
// Eight lanes. A short tail goes through the same vector functions as the rest, filled up with zeros: an exponential
// must not depend on where in the batch its element stands.
typedef float8 vec;
#define W 8
#define EACH(i, b, n) for (int i = (b) * BLOCK; i < min((n), (b) * BLOCK + BLOCK); i += W)
INLINE vec load_tail(GLOBAL const float *x, int n) {
    float t[W] = {0};
    for (int j = 0; j < n; j++) t[j] = x[j];
    return (vec)(t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]);
}
INLINE void store_tail(GLOBAL float *y, int n, vec v) {
    float t[W] = {v.s0, v.s1, v.s2, v.s3, v.s4, v.s5, v.s6, v.s7};
    for (int j = 0; j < n; j++) y[j] = t[j];
}
#define GET(x, i, n) ((i) + W <= (n) ? LOAD(float8u, (x) + (i)) : load_tail((x) + (i), (n) - (i)))
#define PUT(y, i, n, v) if ((i) + W <= (n)) STORE(float8u, (y) + (i), v); else store_tail((y) + (i), (n) - (i), v)
#endif

INLINE vec v_sigmoid(vec x) { return 1.0f / (1.0f + EXP(-x)); }
INLINE vec v_silu(vec x) { return x / (1.0f + EXP(-x)); }
// (1 + tanh(u))/2 is sigmoid(2u), which keeps its digits where tanh is near -1
INLINE vec v_gelu(vec x) { return x / (1.0f + EXP(-1.59576912f * (x + 0.044715f * x * x * x))); }

// y = f(x, s)
#define MAP1(NAME, EXPR) \
INLINE void NAME##_body(int part, int parts, int n, GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, float s) { \
    FOR_RUN(b, BLOCKS(n)) EACH(i, b, n) { vec a = GET(x, i, n); PUT(y, i, n, EXPR); } \
} \
KERNEL void NAME(int n, GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, float s) { \
    NAME##_body(PART, PARTS, n, x, y, s); \
} \
STEP(NAME, NAME##_body(part, parts, INT(0), PTR(1), PTR(2), FLOAT(3)))

MAP1(scale, a * s)
MAP1(softcap, s * TANH(a / s))
MAP1(sigmoid, v_sigmoid(a))
MAP1(silu, v_silu(a))
MAP1(gelu, v_gelu(a))

// y = f(x, z), same shape
#define MAP2(NAME, EXPR) \
INLINE void NAME##_body(int part, int parts, int n, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT z, \
                        GLOBAL float *RESTRICT y) { \
    FOR_RUN(b, BLOCKS(n)) EACH(i, b, n) { vec a = GET(x, i, n), c = GET(z, i, n); PUT(y, i, n, EXPR); } \
} \
KERNEL void NAME(int n, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT z, GLOBAL float *RESTRICT y) { \
    NAME##_body(PART, PARTS, n, x, z, y); \
} \
STEP(NAME, NAME##_body(part, parts, INT(0), PTR(1), PTR(2), PTR(3)))

MAP2(add, a + c)
MAP2(mul, a * c)
MAP2(swiglu, v_silu(a) * c)
MAP2(geglu, v_gelu(a) * c)

// y[r] = f(x[r], z): one row z for all rows
#define MAP_ROW(NAME, EXPR) \
INLINE void NAME##_body(int part, int parts, int rows, int n, GLOBAL const float *RESTRICT x0, \
                        GLOBAL const float *RESTRICT z, GLOBAL float *RESTRICT y0) { \
    FOR_RUN(r, rows) { \
        GLOBAL const float *x = x0 + (long)r * n; \
        GLOBAL float *y = y0 + (long)r * n; \
        for (int b = 0; b < BLOCKS(n); b++) EACH(i, b, n) { vec a = GET(x, i, n), c = GET(z, i, n); PUT(y, i, n, EXPR); } \
    } \
} \
KERNEL void NAME(int rows, int n, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT z, \
                 GLOBAL float *RESTRICT y) { \
    NAME##_body(PART, PARTS, rows, n, x, z, y); \
} \
STEP(NAME, NAME##_body(part, parts, INT(0), INT(1), PTR(2), PTR(3), PTR(4)))

MAP_ROW(add_row, a + c)
MAP_ROW(mul_row, a * c)
