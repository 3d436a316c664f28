// y[t,n] = sum over k of x[t,k] * w[n,k]   (+ bias[n]): x (T,K) f32, w (N,K) of any format, y (T,N) f32.
//
// Every (t, n) is summed in one order, whatever T is, whoever else is in the batch, however the rows are dealt out:
//     lane i of VL takes k = i, i + VL, i + 2 VL ... by fma, up to the last multiple of 32; a tree sums the lanes;
//     the K % 32 values left over (float formats only) follow by scalar fma; the bias comes last.
// So TROWS, TTOKS, KCHUNK and TCHUNK are matters of speed and change no bit; VL changes the order.
//
// A part takes TROWS rows at a time, unpacks a chunk of them into a buffer that stays in the first cache, and runs TTOKS
// tokens at a time over it, TROWS * TTOKS sums in registers. One token is the same with fewer sums.
#include "quants.h"

#ifndef TROWS
#define TROWS (VL == 16 ? 6 : 4)
#endif
#ifndef TTOKS
#define TTOKS (VL == 16 ? 4 : 3)
#endif
#if TTOKS > 4
#error "TTOKS is at most 4: tiled has a case for each remainder"
#endif
#ifndef KCHUNK
#define KCHUNK 512          // values of a row unpacked at a time
#endif
#ifndef TCHUNK
#define TCHUNK 96           // tokens that share them
#endif
#define MIN(a, b) ((a) < (b) ? (a) : (b))

// The rows after these on their way while these are unpacked
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(PLAIN)
#define FETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define FETCH(p)
#endif

// from the lanes of one (t, n) to its result
INLINE float finish(fv acc, GLOBAL const float *x, GLOBAL const uchar *w, int K, GLOBAL const float *bias, int n) {
    float s = SUM(acc);
#if WFLOAT
    for (int k = K & ~31; k < K; k++) s = FMA(float_at(w + k*(QB/32)), x[k], s);
#endif
    return bias ? s + bias[n] : s;
}

INLINE size_t row_bytes(int K) {
#if WFLOAT
    return (size_t)K*(QB/32);
#else
    return (size_t)(K/QK)*QB;
#endif
}

// a run of kn values of TROWS rows from n on, unpacked; vector i of row r at i*TROWS + r
INLINE void unpack(fv *wb, int n, int N, int k0, int kn, GLOBAL const uchar *w, size_t rb) {
    for (int r = 0; r < TROWS; r++) {
        GLOBAL const uchar *p = w + MIN(n + r, N - 1)*rb + (size_t)(k0/QK)*QB;
        for (int k = 0; k < kn; k += QK, p += QB) {
            #pragma unroll
            for (int i = 0; i < QB; i += 64) FETCH(p + TROWS*rb + i);
            heads h = read_heads(p);
            #pragma unroll
            for (int j = 0; j < QK/32; j++) {
                floats f = dequant32(p, &h, j);
                #pragma unroll
                for (int i = 0; i < NV; i++) wb[((k + 32*j)/VL + i)*TROWS + r] = f.v[i];
            }
        }
    }
}

// `toks` tokens (a constant at each call) against the unpacked rows; `lanes` carries the sums from chunk to chunk of K
INLINE void tile(const int toks, const fv *wb, fv *lanes, int kn,
                 GLOBAL const float *x, int K, int first) {
    fv acc[TTOKS][TROWS];
    #pragma unroll
    for (int i = 0; i < toks; i++)
        #pragma unroll
        for (int r = 0; r < TROWS; r++) acc[i][r] = first ? (fv)0 : lanes[i*TROWS + r];
    for (int v = 0; v < kn/VL; v++) {
        #pragma unroll
        for (int i = 0; i < toks; i++) {
            fv xv = LOAD(fvu, x + (size_t)i*K + v*VL);
            #pragma unroll
            for (int r = 0; r < TROWS; r++) acc[i][r] = VFMA(wb[v*TROWS + r], xv, acc[i][r]);
        }
    }
    #pragma unroll
    for (int i = 0; i < toks; i++)
        #pragma unroll
        for (int r = 0; r < TROWS; r++) lanes[i*TROWS + r] = acc[i][r];
}

// rows n .. n+TROWS-1 for the tn <= TCHUNK tokens at x
INLINE void tiled(int n, int N, int K, int tn, GLOBAL const float *x, GLOBAL const uchar *w, GLOBAL const float *bias, GLOBAL float *y) {
    fv wb[KCHUNK/VL*TROWS], lanes[TCHUNK*TROWS];
    const size_t rb = row_bytes(K); const int K32 = K & ~31;
    for (int k0 = 0; k0 == 0 || k0 < K32; k0 += KCHUNK) {
        const int kn = MIN(KCHUNK, K32 - k0);
        unpack(wb, n, N, k0, kn, w, rb);
        int t = 0;
        for (; t + TTOKS <= tn; t += TTOKS) tile(TTOKS, wb, lanes + t*TROWS, kn, x + (size_t)t*K + k0, K, k0 == 0);
        fv *l = lanes + t*TROWS; GLOBAL const float *xt = x + (size_t)t*K + k0;
#if TTOKS > 3
        if (tn - t == 3) tile(3, wb, l, kn, xt, K, k0 == 0);
#endif
        if (tn - t == 2) tile(2, wb, l, kn, xt, K, k0 == 0);
        if (tn - t == 1) tile(1, wb, l, kn, xt, K, k0 == 0);
    }
    for (int t = 0; t < tn; t++)
        for (int r = 0; r < TROWS; r++)
            if (n + r < N)
                y[(size_t)t*N + n + r] = finish(lanes[t*TROWS + r], x + (size_t)t*K, w + (n + r)*rb, K, bias, n + r);
}

INLINE void matmul_body(int part, int parts, int T, int N, int K, GLOBAL const float *x, GLOBAL const uchar *w,
                        GLOBAL const float *bias, GLOBAL float *y) {
    const int n = (N + TROWS - 1)/TROWS;
    for (int t = 0; t < T; t += TCHUNK)
        FOR_RUN(i, n) tiled(i*TROWS, N, K, MIN(TCHUNK, T - t), x + (size_t)t*K, w, bias, y + (size_t)t*N);
}

KERNEL void matmul(int T, int N, int K, GLOBAL const float *RESTRICT x, GLOBAL const uchar *RESTRICT w,
                   GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y) {
    matmul_body(PART, PARTS, T, N, K, x, w, bias, y);
}
STEP(matmul, matmul_body(part, parts, INT(0), INT(1), INT(2), PTR(3), PTR(4), PTR(5), PTR(6)))
