// y[t,n] = sum over k of x[t,k] * w[n,k]   (+ bias[n]), x rounded to 8 bits by quantize.cl: xq (T,K/32,12), w (N,K) of any
// block format, y (T,N) f32.
//
// Each 32 products (each 16, where the weight has a scale for 16) are summed as integers, exactly. Then, block after block,
//     acc = fma(dx, I*d + S*m, acc)        I the integer sum, S the sum of the x integers, d and m of the weight, dx of x
// for every (t, n) alone, whatever T is and however the rows are dealt out. The lanes of a vector are rows of the weight, so
// neither its width nor the instruction that sums the integers shows in the result.
//
// A part takes VR rows at a time and unpacks a chunk of them into a buffer that stays in the first cache; then each token
// runs over it. QTOKS tokens at a time share the loads of the words.
#include "lanes.h"

#ifndef QTOKS
#define QTOKS (VR == 16 ? 8 : 4)
#endif
#ifndef QCHUNK
#define QCHUNK 512           // values of a row unpacked at a time; a multiple of 256
#endif
#ifndef QTCHUNK
#define QTCHUNK 64           // tokens that share them
#endif
#define QWORDS 12
#define MIN(a, b) ((a) < (b) ? (a) : (b))

// one group of 32 for one token
INLINE fv group_dot(const group *g, GLOBAL const int *x, fv acc) {
    GLOBAL const float *f = (GLOBAL const float *)x;          // dx, S of both halves, S
    fv v = 0;
    #pragma unroll
    for (int a = 0; a <= SPLIT; a++) {
        const float S = f[SPLIT ? 1 + a : 3];
        fv I = TO_FV(dot_words(g->w + 4*a, x + 4 + 4*a, SPLIT ? 4 : 8));
#if OFF
        I = LFMA((fv)-(float)OFF, (fv)S, I);                  // exact: all below 2^24
#endif
        v = a ? LFMA(I, g->d[a], v) : I * g->d[0];
#if HAS_MIN
        v = LFMA((fv)S, g->m[a], v);
#endif
    }
    return LFMA((fv)f[0], v, acc);
}

// `toks` tokens (a constant at each call) against `gn` groups
INLINE void q8_tile(const int toks, const group *wb, fv *lanes, int gn, GLOBAL const int *x, size_t xt, int first) {
    fv acc[QTOKS];
    #pragma unroll
    for (int t = 0; t < toks; t++) acc[t] = first ? (fv)0 : lanes[t];
    for (int i = 0; i < gn; i++, x += QWORDS) {
        group g = wb[i];
        #pragma unroll
        for (int t = 0; t < toks; t++) acc[t] = group_dot(&g, x + t*xt, acc[t]);
    }
    #pragma unroll
    for (int t = 0; t < toks; t++) lanes[t] = acc[t];
}

// The next VR rows on their way while these are unpacked: they lie side by side, so do theirs
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__)) && !defined(PLAIN)
#define FETCH(p) __builtin_prefetch((const void *)(size_t)(p))
#else
#define FETCH(p)
#endif

// VR rows from w on, of which those from `skip` to `skip + keep` are wanted, at y; the tn <= QTCHUNK tokens at x
INLINE void q8_rows(int skip, int keep, int N, int K, int tn, GLOBAL const int *x, GLOBAL const uchar *w, size_t rb,
                    GLOBAL const float *bias, GLOBAL float *y) {
    group wb[QCHUNK/32];
    fv lanes[QTCHUNK];
    const size_t xt = (size_t)K/32*QWORDS;
    for (int k0 = 0; k0 < K; k0 += QCHUNK) {
        const int kn = MIN(QCHUNK, K - k0);
        GLOBAL const uchar *p = w + (size_t)(k0/QK)*QB, *next = w + VR*rb + (size_t)(k0/QK)*QB*VR;
        for (int k = 0; k < kn; k += QK, p += QB, next += QB*VR) {
            #pragma unroll
            for (int i = 0; i < QB*VR; i += 64) FETCH(next + i);
            heads h = read_heads(p, rb);
            #pragma unroll
            for (int j = 0; j < QK/32; j++) wb[k/32 + j] = read_group(p, rb, &h, j);
        }
        GLOBAL const int *xk = x + (size_t)k0/32*QWORDS;
        int t = 0;
        for (; t + QTOKS <= tn; t += QTOKS) q8_tile(QTOKS, wb, lanes + t, kn/32, xk + t*xt, xt, k0 == 0);
        for (; t < tn; t++) q8_tile(1, wb, lanes + t, kn/32, xk + t*xt, xt, k0 == 0);
    }
    for (int t = 0; t < tn; t++, y += N)
        for (int r = 0; r < keep; r++) y[r] = bias ? LANE(lanes[t], skip + r) + bias[r] : LANE(lanes[t], skip + r);
}

INLINE void matmul_q8_body(int part, int parts, int T, int N, int K, GLOBAL const int *x, GLOBAL const uchar *w,
                           GLOBAL const float *bias, GLOBAL float *y) {
    const size_t rb = (size_t)(K/QK)*QB, xt = (size_t)K/32*QWORDS;
    const int n = N < VR ? N : (N + VR - 1)/VR;              // a weight of few rows: one row in all lanes
    for (int t = 0; t < T; t += QTCHUNK)
        FOR_RUN(i, n) {
            const int r = N < VR ? i : i*VR, at = N < VR ? i : MIN(r, N - VR);      // the last rows overlap those before
            q8_rows(r - at, N < VR ? 1 : MIN(VR, N - r), N, K, MIN(QTCHUNK, T - t), x + t*xt, w + at*rb, N < VR ? 0 : rb,
                    bias ? bias + r : bias, y + (size_t)t*N + r);
        }
}

KERNEL void matmul_q8(int T, int N, int K, GLOBAL const int *RESTRICT x, GLOBAL const uchar *RESTRICT w,
                      GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y) {
    matmul_q8_body(PART, PARTS, T, N, K, x, w, bias, y);
}
#ifdef INTERPRETER
STEP(matmul_q8, matmul_q8_body(part, parts, INT(0), INT(1), INT(2), PTR(3), PTR(4), PTR(5), PTR(6)))
#endif
