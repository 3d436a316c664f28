// y[t] = w[ids[t]] as floats: w (V,K) of any format, ids (T) i32, y (T,K) f32. An id outside 0 .. V-1 gives a row of zeros.
#include "quants.h"

INLINE void get_row(int id, int V, int K, GLOBAL const uchar *w, GLOBAL float *y) {
    const int K32 = id < 0 || id >= V ? 0 : K & ~31;
#if WFLOAT
    w += (size_t)id*K*(QB/32);
#else
    w += (size_t)id*(K/QK)*QB;
#endif
    for (int k = 0; k < K32; k += QK, w += QB) {
        heads h = read_heads(w);
        #pragma unroll
        for (int j = 0; j < QK/32; j++) {
            floats f = dequant32(w, &h, j);
            #pragma unroll
            for (int i = 0; i < NV; i++) STORE(fvu, y + k + 32*j + VL*i, f.v[i]);
        }
    }
    if (id < 0 || id >= V) for (int k = 0; k < K; k++) y[k] = 0;
#if WFLOAT
    else for (int k = K32; k < K; k++) y[k] = float_at(w + (k - K32)*(QB/32));
#endif
}

INLINE void get_rows_body(int part, int parts, int T, int V, int K, GLOBAL const uchar *w, GLOBAL const int *ids, GLOBAL float *y) {
    FOR_RUN(t, T) get_row(ids[t], V, K, w, y + (size_t)t*K);
}

KERNEL void get_rows(int T, int V, int K, GLOBAL const uchar *RESTRICT w, GLOBAL const int *RESTRICT ids, GLOBAL float *RESTRICT y) {
    get_rows_body(PART, PARTS, T, V, K, w, ids, y);
}
STEP(get_rows, get_rows_body(part, parts, INT(0), INT(1), INT(2), PTR(3), PTR(4), PTR(5)))
