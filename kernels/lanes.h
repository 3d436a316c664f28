// Block formats once more, now a row of the weight in each lane: VR rows side by side, 32 values of each at a time.
//
// Where quants.h turns one row into floats, this keeps the packed integers and puts four bytes of VR rows into one vector
// of VR words: the shape that an integer dot product of four bytes wants. -D WTYPE_<T> names the format. It defines
//     QK, QB          a block is QK values in QB bytes
//     OFF             the bytes are unsigned: value + OFF
//     SPLIT           1 where each 16 values have scales of their own, 0 where 32 share them
//     heads           the scales of VR blocks:                           heads h = read_heads(b, rb);
//     read_group      32 values of VR rows:                              group g = read_group(b, rb, &h, j);
// for group j = 0 .. QK/32-1 of the blocks at b, b + rb, b + 2 rb ... Byte i of word w of lane r is value 4w + i of row r,
// and value = d*(byte - OFF) + m, with d[0], m[0] for the first half, d[SPLIT], m[SPLIT] for the second.
#ifndef LANES_H
#define LANES_H
#include "prelude.h"

// Neither VR nor the instructions show in a result. VR = 1 is for a GPU, whose threads are lanes themselves.

// Instructions that standard OpenCL C has no name for; -D PLAIN does without
#if !defined(PLAIN) && !defined(__CUDACC_RTC__)
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define DOT_512
#endif
#ifdef __AVX2__
#define DOT_256
#endif
#ifdef __F16C__
#define HALF_CVT
#endif
#endif
#ifndef VR
#if defined(__CUDACC_RTC__)
#define VR 1
#elif defined(DOT_512)
#define VR 16
#else
#define VR 8
#endif
#endif

#if VR == 16
typedef uint16 uv;
typedef int16 iv;
typedef float16 fv;
typedef ushort16 hv;
#define LFMA(a, b, c) fma16(a, b, c)
#elif VR == 8
typedef uint8 uv;
typedef int8 iv;
typedef float8 fv;
typedef ushort8 hv;
#define LFMA(a, b, c) fma8(a, b, c)
#else
typedef uint uv;
typedef int iv;
typedef float fv;
#define LFMA(a, b, c) FMA(a, b, c)
#endif
#define ALL(n) ((uv)(n))
#if VR == 1
#define TO_FV(v) ((float)(v))
#define AS_IV(v) ((int)(v))
#define AS_FV(v) as_float(v)
#define LANE(v, r) (v)
#else
#define AS(T, v) __builtin_astype(v, T)
#define TO_FV(v) CVT(v, fv)
#define AS_IV(v) AS(iv, v)
#define AS_FV(v) AS(fv, v)
#define LANE(v, r) ((v)[r])
#endif

typedef struct { uv w[8]; fv d[2], m[2]; } group;
typedef struct { uv w[4]; } quad;

// ---- sixteen bytes of VR rows, as four words of each; all places in a block are even ----
#if VR == 1
INLINE uint word(GLOBAL const uchar *p) { return ((GLOBAL const ushort *)p)[0] | (uint)((GLOBAL const ushort *)p)[1] << 16; }
INLINE quad words4(GLOBAL const uchar *p, size_t rb) {
    quad q = {{word(p), word(p + 4), word(p + 8), word(p + 12)}};
    return q;
}
#else
typedef uint uint4u __attribute__((ext_vector_type(4), aligned(1)));
#if VR == 16
INLINE uint16 every4th(GLOBAL const uchar *p, size_t rb) {
    return (uint16)(LOAD(uint4u, p), LOAD(uint4u, p + 4*rb), LOAD(uint4u, p + 8*rb), LOAD(uint4u, p + 12*rb));
}
#define ZIP(a, b, i) __builtin_shufflevector(a, b, i, i + 16, i + 1, i + 17, i + 4, i + 20, i + 5, i + 21, \
                                             i + 8, i + 24, i + 9, i + 25, i + 12, i + 28, i + 13, i + 29)
#define ZIP2(a, b, i) __builtin_shufflevector(a, b, i, i + 1, i + 16, i + 17, i + 4, i + 5, i + 20, i + 21, \
                                              i + 8, i + 9, i + 24, i + 25, i + 12, i + 13, i + 28, i + 29)
#else
INLINE uint8 every4th(GLOBAL const uchar *p, size_t rb) { return (uint8)(LOAD(uint4u, p), LOAD(uint4u, p + 4*rb)); }
#define ZIP(a, b, i) __builtin_shufflevector(a, b, i, i + 8, i + 1, i + 9, i + 4, i + 12, i + 5, i + 13)
#define ZIP2(a, b, i) __builtin_shufflevector(a, b, i, i + 1, i + 8, i + 9, i + 4, i + 5, i + 12, i + 13)
#endif
// rows 0, 4, 8.. in one vector, 1, 5, 9.. in the next, and so on; then words are dealt out within each four rows
INLINE quad words4(GLOBAL const uchar *p, size_t rb) {
    uv a = every4th(p, rb), b = every4th(p + rb, rb), c = every4th(p + 2*rb, rb), d = every4th(p + 3*rb, rb);
    uv ab = ZIP(a, b, 0), cd = ZIP(c, d, 0), AB = ZIP(a, b, 2), CD = ZIP(c, d, 2);
    quad q = {{ZIP2(ab, cd, 0), ZIP2(ab, cd, 2), ZIP2(AB, CD, 0), ZIP2(AB, CD, 2)}};
    return q;
}
#endif

// the lower half of every word, a half float (finite), as float
INLINE fv halves(uv w) {
#if defined(HALF_CVT) && VR > 1
    typedef __fp16 h16 __attribute__((ext_vector_type(VR)));
    return CVT(AS(h16, CVT(w, hv)), fv);
#else
    return AS_FV((w & ALL(0x8000)) << ALL(16) | (w & ALL(0x7fff)) << ALL(13)) * 0x1p112f;
#endif
}
// byte i of every word as float, unsigned and signed
INLINE fv byte_f(uv w, int i) { return TO_FV(w >> ALL(8*i) & ALL(255)); }
INLINE fv char_f(uv w, int i) { return TO_FV(AS_IV(w << ALL(24 - 8*i)) >> (iv)24); }

INLINE uv low(uv w) { return w & ALL(0x0f0f0f0f); }
INLINE uv high(uv w) { return w >> ALL(4) & ALL(0x0f0f0f0f); }
// four bits from bit 4w of each word, to bit 4 of the four bytes
INLINE uv bits4(uv h, int w) { return (h >> ALL(4*w) & ALL(15)) * ALL(0x02040810) & ALL(0x10101010); }

// ---- blocks of 32 ----
#if defined(WTYPE_Q4_0) || defined(WTYPE_Q4_1) || defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1) \
    || defined(WTYPE_Q8_0) || defined(WTYPE_IQ4_NL)
#define QK 32
#define SPLIT 0
typedef struct { uv a, b; } heads;       // the first two words
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    quad q = words4(b, rb); heads h = {q.w[0], q.w[1]};
    return h;
}

#if defined(WTYPE_Q8_0)
#define QB 34
#define OFF 128
#define HAS_MIN 0
#elif defined(WTYPE_Q4_0) || defined(WTYPE_IQ4_NL)
#define QB 18
#define HAS_MIN 0
#elif defined(WTYPE_Q4_1)
#define QB 20
#define OFF 0
#define HAS_MIN 1
#elif defined(WTYPE_Q5_0)
#define QB 22
#define OFF 16
#define HAS_MIN 0
#else
#define QB 24
#define OFF 0
#define HAS_MIN 1
#endif

// ---- super-blocks of 256 ----
#else
#define QK 256
#if defined(WTYPE_Q2_K) || defined(WTYPE_Q3_K) || defined(WTYPE_Q6_K)
#define SPLIT 1
#else
#define SPLIT 0
#endif
#if defined(WTYPE_Q4_K)
#define QB 144
#define OFF 0
#define HAS_MIN 1
#elif defined(WTYPE_Q5_K)
#define QB 176
#define OFF 0
#define HAS_MIN 1
#elif defined(WTYPE_IQ4_XS)
#define QB 136
#define HAS_MIN 0
#elif defined(WTYPE_Q2_K)
#define QB 84
#define OFF 0
#define HAS_MIN 1
#elif defined(WTYPE_Q3_K)
#define QB 110
#define OFF 4
#define HAS_MIN 0
#elif defined(WTYPE_Q6_K)
#define QB 210
#define OFF 32
#define HAS_MIN 0
#else
#error "give the weight format: -D WTYPE_Q4_1, ... (float formats have no integers)"
#endif
#endif

// ---- the sixteen values of the IQ4 formats, plus 127 ----
#if defined(WTYPE_IQ4_NL) || defined(WTYPE_IQ4_XS)
#define OFF 127
CONSTANT uchar IQ4[16] = {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240};
INLINE uv iq4(uv nib) {
#if defined(DOT_512) && VR == 16
    typedef char c64 __attribute__((vector_size(64)));
    const uint4 t = (uint4)(0x3e2c1700, 0x75695c4e, 0xa5988c80, 0xf0d8c4b4);
    return AS(uv, __builtin_ia32_pshufb512(AS(c64, (uv)(t, t, t, t)), AS(c64, nib)));
#elif defined(DOT_256) && VR == 8
    typedef char c32 __attribute__((vector_size(32)));
    const uint4 t = (uint4)(0x3e2c1700, 0x75695c4e, 0xa5988c80, 0xf0d8c4b4);
    return AS(uv, __builtin_ia32_pshufb256(AS(c32, (uv)(t, t)), AS(c32, nib)));
#else
    uv o;
    for (int r = 0; r < VR; r++) {
        uint n = LANE(nib, r);
        LANE(o, r) = IQ4[n & 15] | IQ4[n >> 8 & 15] << 8 | IQ4[n >> 16 & 15] << 16 | (uint)IQ4[n >> 24] << 24;
    }
    return o;
#endif
}
#define NIB(w) iq4(w)
#else
#if defined(WTYPE_Q4_0)
#define OFF 8
#endif
#define NIB(w) (w)
#endif

// ---- readers ----
#if QK == 32
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; g.d[0] = halves(h->a);
#if HAS_MIN
    g.m[0] = halves(h->a >> ALL(16));
#endif
#if defined(WTYPE_Q8_0)
    quad p = words4(b + 2, rb), q = words4(b + 18, rb);
    #pragma unroll
    for (int i = 0; i < 4; i++) { g.w[i] = p.w[i] ^ ALL(0x80808080); g.w[4 + i] = q.w[i] ^ ALL(0x80808080); }
#else
    quad q = words4(b + QB - 16, rb);
    #pragma unroll
    for (int i = 0; i < 4; i++) { g.w[i] = NIB(low(q.w[i])); g.w[4 + i] = NIB(high(q.w[i])); }
#if defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1)
#if defined(WTYPE_Q5_0)
    uv qh = h->a >> ALL(16) | h->b << ALL(16);
#else
    uv qh = h->b;
#endif
    #pragma unroll
    for (int i = 0; i < 8; i++) g.w[i] |= bits4(qh, i);
#endif
#endif
    return g;
}

#elif defined(WTYPE_Q4_K) || defined(WTYPE_Q5_K)
typedef struct { quad s; fv d, m; } heads;
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    heads h; h.s = words4(b, rb);
    h.d = halves(h.s.w[0]); h.m = -halves(h.s.w[0] >> ALL(16));
    return h;
}
// twelve bytes hold eight 6-bit scales and eight 6-bit minima: four whole bytes of each, and the rest in pieces
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; uv u = h->s.w[1], v = h->s.w[2], w = h->s.w[3];
    uv sc = j < 4 ? u & ALL(0x3f3f3f3f) : (low(w) | (u >> ALL(2) & ALL(0x30303030)));
    uv mn = j < 4 ? v & ALL(0x3f3f3f3f) : (high(w) | (v >> ALL(2) & ALL(0x30303030)));
    g.d[0] = h->d * byte_f(sc, j % 4); g.m[0] = h->m * byte_f(mn, j % 4);
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        quad q = words4(b + QB - 128 + 32*(j/2) + 16*a, rb);
        #pragma unroll
        for (int i = 0; i < 4; i++) g.w[4*a + i] = j % 2 ? high(q.w[i]) : low(q.w[i]);
#if defined(WTYPE_Q5_K)
        quad p = words4(b + 16 + 16*a, rb);
        #pragma unroll
        for (int i = 0; i < 4; i++) g.w[4*a + i] |= (j < 4 ? p.w[i] << ALL(4 - j % 4) : p.w[i] >> ALL(j % 4)) & ALL(0x10101010);
#endif
    }
    return g;
}

#elif defined(WTYPE_IQ4_XS)
typedef struct { uv s, l; fv d; } heads;
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    quad q = words4(b, rb); heads h;
    h.d = halves(q.w[0]); h.s = q.w[0] >> ALL(16); h.l = q.w[1];
    return h;
}
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; uv s = (h->l >> ALL(4*j) & ALL(15)) | (h->s >> ALL(2*j) & ALL(3)) << ALL(4);
    g.d[0] = h->d * TO_FV(AS_IV(s) - (iv)32);
    quad q = words4(b + 8 + 16*j, rb);
    #pragma unroll
    for (int i = 0; i < 4; i++) { g.w[i] = NIB(low(q.w[i])); g.w[4 + i] = NIB(high(q.w[i])); }
    return g;
}

#elif defined(WTYPE_Q2_K)
typedef struct { quad s; fv d, m; } heads;
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    heads h; h.s = words4(b, rb); uv d = words4(b + 68, rb).w[3];
    h.d = halves(d); h.m = -halves(d >> ALL(16));
    return h;
}
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; uv s = h->s.w[j/2];
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        g.d[a] = h->d * byte_f(low(s), 2*(j % 2) + a); g.m[a] = h->m * byte_f(high(s), 2*(j % 2) + a);
        quad q = words4(b + 16 + 32*(j/4) + 16*a, rb);
        #pragma unroll
        for (int i = 0; i < 4; i++) g.w[4*a + i] = q.w[i] >> ALL(2*(j % 4)) & ALL(0x03030303);
    }
    return g;
}

#elif defined(WTYPE_Q3_K)
typedef struct { uv s[4]; fv d; } heads;
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    heads h; quad e = words4(b + 94, rb);                                   // bytes 94 .. 109: scales from the third on
    uv u = e.w[0] >> ALL(16) | e.w[1] << ALL(16), v = e.w[1] >> ALL(16) | e.w[2] << ALL(16);
    uv w = e.w[2] >> ALL(16) | e.w[3] << ALL(16);
    h.d = halves(e.w[3] >> ALL(16));
    h.s[0] = low(u) | (w << ALL(4) & ALL(0x30303030)); h.s[1] = low(v) | (w << ALL(2) & ALL(0x30303030));
    h.s[2] = high(u) | (w & ALL(0x30303030)); h.s[3] = high(v) | (w >> ALL(2) & ALL(0x30303030));
    return h;
}
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; uv s = h->s[j/2];
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        g.d[a] = h->d * (byte_f(s, 2*(j % 2) + a) - 32.0f);
        quad q = words4(b + 32 + 32*(j/4) + 16*a, rb), p = words4(b + 16*a, rb);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            g.w[4*a + i] = (q.w[i] >> ALL(2*(j % 4)) & ALL(0x03030303)) | (p.w[i] >> ALL(j) & ALL(0x01010101)) << ALL(2);
    }
    return g;
}

#else
typedef struct { quad s; fv d; } heads;
INLINE heads read_heads(GLOBAL const uchar *b, size_t rb) {
    heads h; h.s = words4(b + 192, rb); h.d = halves(words4(b + 194, rb).w[3] >> ALL(16));
    return h;
}
INLINE group read_group(GLOBAL const uchar *b, size_t rb, const heads *h, int j) {
    group g; uv s = h->s.w[j/2]; const int n = j/4, c = j % 4;
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        g.d[a] = h->d * char_f(s, 2*(j % 2) + a);
        quad q = words4(b + 64*n + 32*(c & 1) + 16*a, rb), p = words4(b + 128 + 32*n + 16*a, rb);
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            uv two = c < 2 ? p.w[i] << ALL(4 - 2*(c & 1)) : p.w[i] >> ALL(2*(c & 1));
            g.w[4*a + i] = (c < 2 ? low(q.w[i]) : high(q.w[i])) | (two & ALL(0x30303030));
        }
    }
    return g;
}
#endif

// ---- the dot product of four bytes ----
// s + sum over words of w (unsigned bytes) * x (signed bytes), every lane its own w and all the same x: `n` words, exact
#if defined(DOT_512) && VR == 16
INLINE iv dot_words(const uv *w, GLOBAL const int *x, int n) {
    typedef int v16 __attribute__((vector_size(64)));
    iv s = 0;
    #pragma unroll
    for (int i = 0; i < n; i++) s = AS(iv, __builtin_ia32_vpdpbusd512(AS(v16, s), AS(v16, w[i]), AS(v16, (iv)x[i])));
    return s;
}
#elif defined(DOT_256) && VR == 8
// pairs of products in 16 bits. They hold 2*127*127, so: bytes below 128 as they are, and as many pairs added as fit
INLINE short16 pairs(uv w, int x) {
    typedef char c32 __attribute__((vector_size(32)));
    return AS(short16, __builtin_ia32_pmaddubsw256(AS(c32, w), AS(c32, (iv)x)));
}
INLINE iv widen(short16 p) {
    typedef short s16 __attribute__((vector_size(32)));
    return AS(iv, __builtin_ia32_pmaddwd256(AS(s16, p), AS(s16, (short16)1)));
}
#if OFF > 100
INLINE iv dot_words(const uv *w, GLOBAL const int *x, int n) {      // all eight bits: halves of the byte
    iv s = 0;
    #pragma unroll
    for (int i = 0; i < n; i++) s += widen(pairs(low(w[i]), x[i])) + (widen(pairs(high(w[i]), x[i])) << (iv)4);
    return s;
}
#else
#if OFF == 32
#define FIT 2
#else
#define FIT 4
#endif
INLINE iv dot_words(const uv *w, GLOBAL const int *x, int n) {
    iv s = 0;
    #pragma unroll
    for (int i = 0; i < n; i += FIT) {
        short16 p = pairs(w[i], x[i]);
        #pragma unroll
        for (int k = 1; k < FIT; k++) p += pairs(w[i + k], x[i + k]);
        s += widen(p);
    }
    return s;
}
#endif
#else
INLINE iv dot_words(const uv *w, GLOBAL const int *x, int n) {
    iv s = 0;
    for (int i = 0; i < n; i++) {
        #pragma unroll
        for (int k = 0; k < 4; k++) s += AS_IV(w[i] >> ALL(8*k) & ALL(255)) * (iv)(x[i] << (24 - 8*k) >> 24);
    }
    return s;
}
#endif
#endif
