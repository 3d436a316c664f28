// One source, two dialects: what every kernel file may use, in OpenCL C 1.2 and in CUDA C++.
//
// Shape of a kernel (the same for all): the work is a list of `n` independent items (rows), split into `parts` runs.
//     INLINE void scale_body(int part, int parts, int n, GLOBAL const float *x, GLOBAL float *y, float s) {
//         FOR_RUN(i, n) y[i] = x[i] * s;
//     }
//     KERNEL void scale(int n, GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, float s) {
//         scale_body(PART, PARTS, n, x, y, s);
//     }
// The body knows nothing of the launch, so that a launch of its own or an interpreter of many ops can call it. An item's
// result may depend on that item alone, never on `part`, `parts` or `n`: fixed order of every reduction.
// On a CPU a group is one work-item (REQD1 says so to the compiler) that works in hand-made vectors.
// Types of arguments: pointers, int, float. Half floats travel as `ushort`; bf16 too. -D options choose types and sizes.
#ifndef PRELUDE_H
#define PRELUDE_H

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// ---- CUDA C++ ----
#define KERNEL extern "C" __global__
#define REQD1
#define INLINE static __device__ __forceinline__
#define GLOBAL
#define CONSTANT static __constant__ const
#define LOCAL __shared__
#define RESTRICT __restrict__
#define LID_0 ((int)threadIdx.x)
#define LID_1 ((int)threadIdx.y)
#define LID_2 ((int)threadIdx.z)
#define GRP_0 ((int)blockIdx.x)
#define GRP_1 ((int)blockIdx.y)
#define GRP_2 ((int)blockIdx.z)
#define LSZ_0 ((int)blockDim.x)
#define LSZ_1 ((int)blockDim.y)
#define LSZ_2 ((int)blockDim.z)
#define NGRP_0 ((int)gridDim.x)
#define NGRP_1 ((int)gridDim.y)
#define NGRP_2 ((int)gridDim.z)
#define BARRIER() __syncthreads()
#define ATOMIC_ADD(p, v) atomicAdd(p, v)
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
#define as_float(x) __uint_as_float((unsigned)(x))
#define as_int(x) __float_as_int(x)
#define as_uint(x) __float_as_uint(x)
#define FMA(a, b, c) fmaf(a, b, c)
#define EXP(x) expf(x)
#define TANH(x) tanhf(x)
#define SQRT(x) sqrtf(x)
#define FMAX(a, b) fmaxf(a, b)
#else
// ---- OpenCL C ----
#pragma OPENCL FP_CONTRACT OFF
#ifdef INTERPRETER
#define KERNEL INLINE
#else
#define KERNEL __kernel REQD1
#endif
#define REQD1 __attribute__((reqd_work_group_size(1, 1, 1)))
#define INLINE static inline __attribute__((always_inline))
#define GLOBAL __global
#define CONSTANT __constant
#define LOCAL __local
#ifndef RESTRICT      // -DRESTRICT= for a simulator that does not know the hint
#define RESTRICT restrict
#endif
#define LID_0 ((int)get_local_id(0))
#define LID_1 ((int)get_local_id(1))
#define LID_2 ((int)get_local_id(2))
#define GRP_0 ((int)get_group_id(0))
#define GRP_1 ((int)get_group_id(1))
#define GRP_2 ((int)get_group_id(2))
#define LSZ_0 ((int)get_local_size(0))
#define LSZ_1 ((int)get_local_size(1))
#define LSZ_2 ((int)get_local_size(2))
#define NGRP_0 ((int)get_num_groups(0))
#define NGRP_1 ((int)get_num_groups(1))
#define NGRP_2 ((int)get_num_groups(2))
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define ATOMIC_ADD(p, v) atomic_add(p, v)
#define EXP(x) exp(x)
#define TANH(x) tanh(x)
#define SQRT(x) sqrt(x)
#define FMAX(a, b) fmax(a, b)

// Vectors with no demand on alignment. vloadN is a function call on PoCL's CPUs and spills every live vector;
// a load through these types is one instruction. V8F(p) reads eight floats at p, V8F(p) = v writes them.
typedef float  float4u  __attribute__((ext_vector_type(4),  aligned(1)));
typedef float  float8u  __attribute__((ext_vector_type(8),  aligned(1)));
typedef float  float16u __attribute__((ext_vector_type(16), aligned(1)));
typedef ushort ushort8u  __attribute__((ext_vector_type(8),  aligned(1)));
typedef ushort ushort16u __attribute__((ext_vector_type(16), aligned(1)));
typedef short  short16u __attribute__((ext_vector_type(16), aligned(1)));
typedef int    int8u    __attribute__((ext_vector_type(8),  aligned(1)));
typedef uchar  uchar8u  __attribute__((ext_vector_type(8),  aligned(1)));
typedef uchar  uchar16u __attribute__((ext_vector_type(16), aligned(1)));
typedef char   char8u   __attribute__((ext_vector_type(8),  aligned(1)));
typedef char   char16u  __attribute__((ext_vector_type(16), aligned(1)));
#define LOAD(T, p)     (*(GLOBAL const T *)(p))        // LOAD(uchar16u, p)
#define STORE(T, p, v) (*(GLOBAL T *)(p) = (v))        // STORE(float8u, p, v)
#define CVT(v, T)      __builtin_convertvector(v, T)   // CVT(bytes, int16)

// a*b + c, rounded once. fma() is a function call on PoCL's CPUs; contraction, allowed in these lines alone, is one
// instruction (or, on a machine without it, a product and a sum, the same everywhere).
#define FMA_OF(name, T) INLINE T name(T a, T b, T c) { _Pragma("OPENCL FP_CONTRACT ON") return a * b + c; }
FMA_OF(FMA, float)
FMA_OF(fma4, float4)
FMA_OF(fma8, float8)
FMA_OF(fma16, float16)

// The sum of the lanes, in one fixed tree
INLINE float sum4(float4 v) { return (v.s0 + v.s2) + (v.s1 + v.s3); }
INLINE float sum8(float8 v) { return sum4(v.lo + v.hi); }
INLINE float sum16(float16 v) { return sum8(v.lo + v.hi); }
INLINE float max8(float8 v) {
    float4 a = fmax(v.lo, v.hi);
    return fmax(fmax(a.s0, a.s2), fmax(a.s1, a.s3));
}
#endif

// ---- both ----
#define LID(d) LID_##d
#define GRP(d) GRP_##d
#define LSZ(d) LSZ_##d
#define NGRP(d) NGRP_##d
#define PART GRP(0)
#define PARTS NGRP(0)
// item i of this part's run of n items
#define RUN_AT(n, p) ((int)((long)(n) * (p) / parts))
#define FOR_RUN(i, n) for (int i = RUN_AT(n, part), i##_end = RUN_AT(n, part + 1); i < i##_end; i++)

// A kernel as a step of a program (interpret.cl): the same body, its arguments from a list, in the kernel's order.
#ifdef INTERPRETER
typedef union { int i; float f; ulong p; } slot;
#define STEP(name, ...) static __attribute__((noinline)) void name##_step(int part, int parts, GLOBAL const slot *a) { __VA_ARGS__; }
#define INT(n) (a[n].i)
#define FLOAT(n) (a[n].f)
#define PTR(n) ((GLOBAL void *)a[n].p)
#else
#define STEP(name, ...)
#endif

// Half to float, exact for zero, subnormal and normal halves (scales of block formats are never inf or nan)
INLINE float h2f_finite(ushort h) {
    return as_float((uint)(h & 0x8000) << 16 | (uint)(h & 0x7fff) << 13) * 0x1p112f;
}
// Half to float, all values
INLINE float h2f(ushort h) {
    float f = h2f_finite(h);
    return (h & 0x7c00) == 0x7c00 ? as_float((uint)(h & 0x8000) << 16 | 0x7f800000u | (uint)(h & 0x3ff) << 13) : f;
}
// Float to half, to nearest, ties to even; too large is inf, nan stays nan
INLINE ushort f2h(float f) {
    uint x = as_uint(f), sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
    if (a > 0x7f800000) return (ushort)(sign | 0x7e00);
    if (a >= 0x477ff000) return (ushort)(sign | 0x7c00);                      // 65520 and up
    if (a < 0x38800000) return (ushort)(sign | (as_uint(as_float(a) + 0.5f) - 0x3f000000u));   // subnormal half
    return (ushort)(sign | ((a + 0xc8000fffu + (a >> 13 & 1)) >> 13));
}
#ifndef __CUDACC_RTC__
// Eight at once, all values. The compiler's own half type knows the instruction where there is one.
#ifdef __F16C__
typedef __fp16 half8v __attribute__((ext_vector_type(8)));
INLINE float8 h2f8(ushort8 h) { return CVT(__builtin_astype(h, half8v), float8); }
INLINE ushort8 f2h8(float8 f) { return __builtin_astype(CVT(f, half8v), ushort8); }
#else
INLINE float8 h2f8(ushort8 h) {
    uint8 u = CVT(h, uint8), sign = (u & 0x8000u) << 16, rest = (u & 0x7fffu) << 13;
    float8 f = as_float8(sign | rest) * 0x1p112f;
    return select(f, as_float8(sign | rest | 0x7f800000u), (u & 0x7c00u) == 0x7c00u);
}
INLINE ushort8 f2h8(float8 f) {
    return (ushort8)(f2h(f.s0), f2h(f.s1), f2h(f.s2), f2h(f.s3), f2h(f.s4), f2h(f.s5), f2h(f.s6), f2h(f.s7));
}
#endif
#endif
INLINE float bf2f(ushort b) { return as_float((uint)b << 16); }
#endif
