// Rows of floats as 8-bit integers with a scale for each 32: x (T,K) f32 to xq (T,K/32,12) words. A block of twelve words is
//     d f32 = max |x| / 127;  the sums of the integers of the first half, of the second, of both, as f32;  32 integers i8
// An integer is x * (127 / max |x|) to nearest, ties to even. A block all below 2^-100 becomes zeros; one with an infinity or
// a nan among its numbers has that as its d.
#include "prelude.h"

#define QWORDS 12

// floats below 2^22, to the nearest integer: the sum has no room for a fraction
INLINE int nearest(float x) { return as_int(x + 0x1.8p23f) - 0x4b400000; }

// (loops the compiler turns into vectors, each over its own 32 numbers)
INLINE void quantize_block(GLOBAL const float *RESTRICT x, GLOBAL int *RESTRICT o) {
    float v[32];
    char q[32];
    uint top = 0;
    for (int i = 0; i < 32; i++) v[i] = x[i];
    for (int i = 0; i < 32; i++) {
        uint a = as_uint(v[i]) & 0x7fffffffu;                 // floats without their sign are in the order of their bits
        top = a > top ? a : top;
    }
    const float most = as_float(top);
    const int good = top >= 0x0d800000u && top < 0x7f800000u;  // 2^-100 and up, finite
    const float scale = good ? 127.0f / most : 0.0f;
    int lo = 0, hi = 0;
    for (int i = 0; i < 32; i++) q[i] = (char)nearest(good ? v[i] * scale : 0.0f);
    for (int i = 0; i < 16; i++) lo += q[i];
    for (int i = 16; i < 32; i++) hi += q[i];
    for (int i = 0; i < 32; i++) ((GLOBAL char *)(o + 4))[i] = q[i];
    GLOBAL float *f = (GLOBAL float *)o;
    f[0] = good || top >= 0x7f800000u ? most / 127.0f : 0.0f;
    f[1] = lo; f[2] = hi; f[3] = lo + hi;
}

INLINE void quantize_rows_body(int part, int parts, int n, GLOBAL const float *RESTRICT x, GLOBAL int *RESTRICT xq) {
    FOR_RUN(b, n) quantize_block(x + (size_t)b*32, xq + (size_t)b*QWORDS);
}
KERNEL void quantize_rows(int n, GLOBAL const float *RESTRICT x, GLOBAL int *RESTRICT xq) {
    quantize_rows_body(PART, PARTS, n, x, xq);
}
#ifdef INTERPRETER
STEP(quantize_rows, quantize_rows_body(part, parts, INT(0), PTR(1), PTR(2)))
#endif
