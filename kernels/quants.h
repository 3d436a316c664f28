// Block formats in the kernel dialect: 32 weights of a row at a time, from packed bytes to floats in registers.
//
// -D WTYPE_<T> names the format. It defines
//     QK, QB          a block is QK values in QB bytes (the float formats: pseudo-blocks of 32)
//     heads           the scales of one block, unpacked once a block:    heads h = read_heads(b);
//     read_ints       32 small integers and their scales:                ints g = read_ints(b, &h, j);
//     dequant32       32 floats, as 32/VL vectors of VL lanes:           floats w = dequant32(b, &h, j);
// for group j = 0 .. QK/32-1 of the block at b. Value i of half a (16 values) is d[a]*q[a][i] + m[a], rounded once where the
// definition rounds once: the floats are those of the definition, bit for bit. (j is a constant wherever loops are unrolled.)
// An 8-bit-activation product would start from `ints`; a float product starts from `floats`.
#ifndef QUANTS_H
#define QUANTS_H
#include "prelude.h"

// Instructions that standard OpenCL C has no name for (or a slow one); -D PLAIN does without, as any other compiler would
#ifndef PLAIN
#ifdef __F16C__
#define HAVE_F16C
#endif
#ifdef __SSSE3__
#define HAVE_PSHUFB
#endif
#ifdef __AVX512F__
#define HAVE_512
#endif
#endif
#define AS(T, v) __builtin_astype(v, T)

// ---- vectors of VL floats: as wide as the machine has them ----
#ifndef VL
#ifdef HAVE_512
#define VL 16
#else
#define VL 8
#endif
#endif
#define NV (32/VL)

#if VL == 16
typedef float16 fv;
typedef float16u fvu;
#define SUM(v) sum16(v)
#define VFMA(a, b, c) fma16(a, b, c)
#else
typedef float8 fv;
typedef float8u fvu;
#define SUM(v) sum8(v)
#define VFMA(a, b, c) fma8(a, b, c)
#endif

// Four halves at any address. The compiler's own half type knows the instruction of F16C; without it, integers. No other
// load may lie wholly within these eight bytes: the compiler would take it from the half vector, by way of the stack
#ifdef HAVE_F16C
typedef __fp16 half4u __attribute__((ext_vector_type(4), aligned(1)));
INLINE float4 halves4(GLOBAL const uchar *p) { return CVT(LOAD(half4u, p), float4); }
#else
typedef ushort ushort4u __attribute__((ext_vector_type(4), aligned(1)));
INLINE float4 halves4(GLOBAL const uchar *p) {
    uint4 h = CVT(LOAD(ushort4u, p), uint4);
    return as_float4((h & 0x8000) << 16 | (h & 0x7fff) << 13) * 0x1p112f;
}
#endif

typedef struct { fv v[NV]; } floats;
typedef struct { char16 q[2]; float d[2], m[2]; } ints;

// ---- float formats: no scales, QK is only the stride of a step ----
#if defined(WTYPE_F32) || defined(WTYPE_F16) || defined(WTYPE_BF16)
#define WFLOAT 1
#define QK 32
typedef int heads;
INLINE heads read_heads(GLOBAL const uchar *b) { return 0; }

#if defined(WTYPE_F32)
#define QB 128
INLINE fv floats_at(GLOBAL const uchar *p) { return LOAD(fvu, p); }
INLINE float float_at(GLOBAL const uchar *p) { return *(GLOBAL const float *)p; }
#elif defined(WTYPE_BF16)
#define QB 64
#if VL == 16
INLINE fv floats_at(GLOBAL const uchar *p) { return as_float16(CVT(LOAD(ushort16u, p), uint16) << 16); }
#else
INLINE fv floats_at(GLOBAL const uchar *p) { return as_float8(CVT(LOAD(ushort8u, p), uint8) << 16); }
#endif
INLINE float float_at(GLOBAL const uchar *p) { return bf2f(*(GLOBAL const ushort *)p); }
#else
#define QB 64
#ifdef HAVE_F16C
typedef __fp16 halfvu __attribute__((ext_vector_type(VL), aligned(1)));
INLINE fv floats_at(GLOBAL const uchar *p) { return CVT(LOAD(halfvu, p), fv); }
#else
INLINE fv floats_at(GLOBAL const uchar *p) {
    fv v;
    for (int i = 0; i < VL; i++) v[i] = h2f(*(GLOBAL const ushort *)(p + 2*i));
    return v;
}
#endif
INLINE float float_at(GLOBAL const uchar *p) { return h2f(*(GLOBAL const ushort *)p); }
#endif

INLINE floats dequant32(GLOBAL const uchar *b, const heads *h, int j) {
    floats o;
    #pragma unroll
    for (int i = 0; i < NV; i++) o.v[i] = floats_at(b + i*(QB/NV));
    return o;
}

#else
#define WFLOAT 0

// ---- pieces the formats share ----
#define BYTES(p) LOAD(uchar16u, p)
typedef uint uintu __attribute__((aligned(1)));
typedef ulong ulongu __attribute__((aligned(1)));
INLINE uint u32(GLOBAL const uchar *p) { return LOAD(uintu, p); }
INLINE ulong u64(GLOBAL const uchar *p) { return LOAD(ulongu, p); }
INLINE uchar16 low(uchar16 b) { return b & (uchar16)15; }
INLINE uchar16 high(uchar16 b) { return b >> (uchar16)4; }
// bit `from` of every byte, moved to bit `to`
INLINE uchar16 bit(uchar16 b, int from, int to) {
    uchar16 s = from > to ? b >> (uchar16)(from - to) : b << (uchar16)(to - from);
    return s & (uchar16)(1 << to);
}
// 16 bits, one byte each: 16 where the bit is set
INLINE uchar16 bits16(uchar2 h) {
    const uchar16 one = (uchar16)(1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128);
    return as_uchar16((h.s0000000011111111 & one) != (uchar16)0) & (uchar16)16;
}
// the sixteen values of the IQ4 formats, looked up for 16 nibbles at once
CONSTANT char IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
INLINE char16 iq4(uchar16 nib) {
#ifdef HAVE_PSHUFB
    typedef char cx __attribute__((vector_size(16)));
    const char16 table = (char16)(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return AS(char16, __builtin_ia32_pshufb128(AS(cx, table), AS(cx, nib)));
#else
    char16 o;
    for (int i = 0; i < 16; i++) o[i] = IQ4[nib[i]];
    return o;
#endif
}

// ---- blocks of 32: d, and m where there is one ----
#if defined(WTYPE_Q4_0) || defined(WTYPE_Q4_1) || defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1) \
    || defined(WTYPE_Q8_0) || defined(WTYPE_IQ4_NL)
#define QK 32
typedef float4 heads;
INLINE heads read_heads(GLOBAL const uchar *b) { return halves4(b); }
#define HEAD(g) g.d[0] = g.d[1] = h->s0; g.m[0] = g.m[1] = h->s1

#if defined(WTYPE_Q4_0)
#define QB 18
#define HAS_MIN 0
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 2);
    g.q[0] = as_char16(low(q)) - (char16)8; g.q[1] = as_char16(high(q)) - (char16)8;
    return g;
}
#elif defined(WTYPE_Q4_1)
#define QB 20
#define HAS_MIN 1
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 4);
    g.q[0] = as_char16(low(q)); g.q[1] = as_char16(high(q));
    return g;
}
#elif defined(WTYPE_Q5_0)
#define QB 22
#define HAS_MIN 0
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 6); uchar8 qh = as_uchar8(u64(b + 2));
    g.q[0] = as_char16(low(q) | bits16(qh.s01)) - (char16)16; g.q[1] = as_char16(high(q) | bits16(qh.s23)) - (char16)16;
    return g;
}
#elif defined(WTYPE_Q5_1)
#define QB 24
#define HAS_MIN 1
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 8); uchar8 qh = as_uchar8(u64(b + 4));
    g.q[0] = as_char16(low(q) | bits16(qh.s01)); g.q[1] = as_char16(high(q) | bits16(qh.s23));
    return g;
}
#elif defined(WTYPE_Q8_0)
#define QB 34
#define HAS_MIN 0
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g);
    g.q[0] = as_char16(BYTES(b + 2)); g.q[1] = as_char16(BYTES(b + 18));
    return g;
}
#else
#define QB 18
#define HAS_MIN 0
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 2);
    g.q[0] = iq4(low(q)); g.q[1] = iq4(high(q));
    return g;
}
#endif

// ---- super-blocks of 256 with a scale every 32 ----
#elif defined(WTYPE_Q4_K) || defined(WTYPE_Q5_K) || defined(WTYPE_IQ4_XS)
#define QK 256
#define HEAD(g) g.d[0] = g.d[1] = h->d[j]; g.m[0] = g.m[1] = h->m[j]
typedef struct { float8 d, m; } heads;

#if defined(WTYPE_IQ4_XS)
#define QB 136
#define HAS_MIN 0
INLINE heads read_heads(GLOBAL const uchar *b) {
    const uint8 k = (uint8)(0, 1, 2, 3, 4, 5, 6, 7);
    float4 d = halves4(b); ulong u = u64(b + 2);
    uint8 s = ((uint8)(uint)(u >> 16) >> 4*k & 15) | ((uint8)(uint)u >> 2*k & 3) << 4;
    heads h; h.d = d.s0 * CVT(as_int8(s) - 32, float8); h.m = 0;
    return h;
}
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); uchar16 q = BYTES(b + 8 + 16*j);
    g.q[0] = iq4(low(q)); g.q[1] = iq4(high(q));
    return g;
}
#else
#define HAS_MIN 1
// twelve bytes hold eight 6-bit scales and eight 6-bit minima: four whole bytes of each, and the rest in pieces
INLINE heads read_heads(GLOBAL const uchar *b) {
    float4 d = halves4(b); ulong uv = u64(b + 4); uint u = (uint)uv, v = (uint)(uv >> 32), w = u32(b + 12);
    uint2 sc = (uint2)(u & 0x3f3f3f3f, (w & 0x0f0f0f0f) | (u >> 2 & 0x30303030));
    uint2 mn = (uint2)(v & 0x3f3f3f3f, (w >> 4 & 0x0f0f0f0f) | (v >> 2 & 0x30303030));
    heads h; h.d = d.s0 * CVT(as_uchar8(sc), float8); h.m = -d.s1 * CVT(as_uchar8(mn), float8);
    return h;
}
#if defined(WTYPE_Q4_K)
#define QB 144
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g);
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        uchar16 q = BYTES(b + 16 + 32*(j/2) + 16*a);
        g.q[a] = as_char16(j % 2 ? high(q) : low(q));
    }
    return g;
}
#else
#define QB 176
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g);
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        uchar16 q = BYTES(b + 48 + 32*(j/2) + 16*a);
        g.q[a] = as_char16((j % 2 ? high(q) : low(q)) | bit(BYTES(b + 16 + 16*a), j, 4));
    }
    return g;
}
#endif
#endif

// ---- super-blocks of 256 with a scale every 16 ----
#elif defined(WTYPE_Q2_K) || defined(WTYPE_Q3_K) || defined(WTYPE_Q6_K)
#define QK 256
#define HEAD(g) g.d[0] = h->d[2*j]; g.d[1] = h->d[2*j + 1]; g.m[0] = h->m[2*j]; g.m[1] = h->m[2*j + 1]
typedef struct { float16 d, m; } heads;

#if defined(WTYPE_Q2_K)
#define QB 84
#define HAS_MIN 1
INLINE heads read_heads(GLOBAL const uchar *b) {
    float4 d = halves4(b + 76); uchar16 s = BYTES(b);
    heads h; h.d = d.s2 * CVT(low(s), float16); h.m = -d.s3 * CVT(high(s), float16);
    return h;
}
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g);
    #pragma unroll
    for (int a = 0; a < 2; a++)
        g.q[a] = as_char16(BYTES(b + 16 + 32*(j/4) + 16*a) >> (uchar16)(2*(j % 4)) & (uchar16)3);
    return g;
}
#elif defined(WTYPE_Q3_K)
#define QB 110
#define HAS_MIN 0
INLINE heads read_heads(GLOBAL const uchar *b) {
    float4 d = halves4(b + 102); ulong vw = u64(b + 100); uint u = u32(b + 96), v = (uint)vw, w = (uint)(vw >> 32);
    uint4 s = (uint4)(u, v, u >> 4, v >> 4) & 0x0f0f0f0f;
    s |= (uint4)(w << 4, w << 2, w, w >> 2) & 0x30303030;
    heads h; h.d = d.s3 * CVT(as_char16(s) - (char16)32, float16); h.m = 0;
    return h;
}
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g);
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        uchar16 q = BYTES(b + 32 + 32*(j/4) + 16*a) >> (uchar16)(2*(j % 4)) & (uchar16)3;
        g.q[a] = as_char16(q | bit(BYTES(b + 16*a), j, 2)) - (char16)4;
    }
    return g;
}
#else
#define QB 210
#define HAS_MIN 0
INLINE heads read_heads(GLOBAL const uchar *b) {
    float4 d = halves4(b + 202);
    heads h; h.d = d.s3 * CVT(as_char16(BYTES(b + 192)), float16); h.m = 0;
    return h;
}
INLINE ints read_ints(GLOBAL const uchar *b, const heads *h, int j) {
    ints g; HEAD(g); int n = j/4, c = j % 4;
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        uchar16 q = BYTES(b + 64*n + 32*(c & 1) + 16*a), qh = BYTES(b + 128 + 32*n + 16*a);
        uchar16 two = c < 2 ? qh << (uchar16)(4 - 2*c) : qh >> (uchar16)(2*c - 4);
        g.q[a] = as_char16((c < 2 ? low(q) : high(q)) | (two & (uchar16)48)) - (char16)32;
    }
    return g;
}
#endif
#else
#error "give the weight format: -D WTYPE_F32, WTYPE_Q4_1, ..."
#endif

// ---- integers to floats ----
#if HAS_MIN
#define SCALED(q, a) VFMA((fv)g.d[a], q, (fv)g.m[a])
#else
#define SCALED(q, a) ((fv)g.d[a] * (q))
#endif
// Four and five bits have so few values that a block's floats can be made first, 16 or 32 of them, and then be looked up: the
// index is the packed byte itself, of which the instruction looks at the last bits alone
#if defined(HAVE_512) && VL == 16 && (defined(WTYPE_Q4_0) || defined(WTYPE_Q4_1) || defined(WTYPE_IQ4_NL) \
    || defined(WTYPE_Q4_K) || defined(WTYPE_IQ4_XS) || defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1))
typedef float f512 __attribute__((vector_size(64)));
typedef int i512 __attribute__((vector_size(64)));
INLINE float16 of16(float16 t, uint16 i) { return AS(float16, __builtin_ia32_permvarsf512(AS(f512, t), AS(i512, i))); }
INLINE float16 of32(float16 t, float16 u, uint16 i) {
    return AS(float16, __builtin_ia32_vpermi2varps512(AS(f512, t), AS(i512, i), AS(f512, u)));
}
INLINE uint16 bytes_at(GLOBAL const uchar *p) { return CVT(BYTES(p), uint16); }
#define COUNT16 ((float16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#if defined(WTYPE_IQ4_NL) || defined(WTYPE_IQ4_XS)
#define VALUES ((float16)(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
#elif defined(WTYPE_Q4_0)
#define VALUES (COUNT16 - 8.0f)
#elif defined(WTYPE_Q5_0)
#define VALUES (COUNT16 - 16.0f)
#else
#define VALUES COUNT16
#endif
#if HAS_MIN
#define MADE(d, m, values) VFMA((fv)(d), values, (fv)(m))
#else
#define MADE(d, m, values) ((fv)(d) * (values))
#endif

INLINE floats dequant32(GLOBAL const uchar *b, const heads *h, int j) {
    floats o;
#if defined(WTYPE_Q4_K)
    const float16 t = MADE(h->d[j], h->m[j], VALUES);
    #pragma unroll
    for (int a = 0; a < 2; a++) {
        uint16 q = bytes_at(b + 16 + 32*(j/2) + 16*a);
        o.v[a] = of16(t, j % 2 ? q >> 4u : q);
    }
#elif defined(WTYPE_Q5_0) || defined(WTYPE_Q5_1)
    const float16 t = MADE(h->s0, h->s1, VALUES), u = MADE(h->s0, h->s1, VALUES + 16.0f);
    const uint16 q = bytes_at(b + QB - 16), lo = q & 15u, hi = q >> 4u;
    const uint bits = (uint)u64(b + QB - 20);
    o.v[0] = of32(t, u, AS(uint16, __builtin_ia32_selectd_512((ushort)bits, AS(i512, lo | 16u), AS(i512, lo))));
    o.v[1] = of32(t, u, AS(uint16, __builtin_ia32_selectd_512((ushort)(bits >> 16), AS(i512, hi | 16u), AS(i512, hi))));
#else
#if defined(WTYPE_IQ4_XS)
    const float16 t = MADE(h->d[j], 0, VALUES);
    const uint16 q = bytes_at(b + 8 + 16*j);
#else
    const float16 t = MADE(h->s0, h->s1, VALUES);
    const uint16 q = bytes_at(b + QB - 16);
#endif
    o.v[0] = of16(t, q);
    o.v[1] = of16(t, q >> 4u);
#endif
    return o;
}

#else
INLINE floats dequant32(GLOBAL const uchar *b, const heads *h, int j) {
    ints g = read_ints(b, h, j); floats o;
    #pragma unroll
    for (int a = 0; a < 2; a++) {
#if VL == 16
        o.v[a] = SCALED(CVT(g.q[a], float16), a);
#else
        o.v[2*a] = SCALED(CVT(g.q[a].lo, float8), a);
        o.v[2*a + 1] = SCALED(CVT(g.q[a].hi, float8), a);
#endif
    }
    return o;
}
#endif
#endif
#endif
