// RMS norm of rows: y = x / sqrt(mean(x^2) + eps) * w
#include "prelude.h"

// The sum of squares of a row: sixteen running sums, whatever the number of rows
INLINE float sum_squares(GLOBAL const float *x, int K) {
    float8 a = 0.0f, b = 0.0f;
    int i = 0;
    for (; i + 16 <= K; i += 16) {
        float8 u = LOAD(float8u, x + i), v = LOAD(float8u, x + i + 8);
        a = fma8(u, u, a);
        b = fma8(v, v, b);
    }
    float s = sum8(a + b);
    for (; i < K; i++) s = FMA(x[i], x[i], s);
    return s;
}

INLINE void rms_norm_body(int part, int parts, int rows, int K, GLOBAL const float *RESTRICT x0,
                          GLOBAL const float *RESTRICT w, GLOBAL float *RESTRICT y0, float eps) {
    FOR_RUN(r, rows) {
        GLOBAL const float *x = x0 + (long)r * K;
        GLOBAL float *y = y0 + (long)r * K;
        float root = SQRT(sum_squares(x, K) / K + eps);
        int i = 0;
        if (w) {
            for (; i + 8 <= K; i += 8)
                STORE(float8u, y + i, LOAD(float8u, x + i) / root * LOAD(float8u, w + i));
            for (; i < K; i++) y[i] = x[i] / root * w[i];
        } else {
            for (; i + 8 <= K; i += 8) STORE(float8u, y + i, LOAD(float8u, x + i) / root);
            for (; i < K; i++) y[i] = x[i] / root;
        }
    }
}
KERNEL void rms_norm(int rows, int K, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT w,
                     GLOBAL float *RESTRICT y, float eps) {
    rms_norm_body(PART, PARTS, rows, K, x, w, y, eps);
}
STEP(rms_norm, rms_norm_body(part, parts, INT(0), INT(1), PTR(2), PTR(3), PTR(4), FLOAT(5)))
