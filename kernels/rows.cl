// Rows into a memory, and whole copies. -DDST_F16: the memory holds half floats.
#include "prelude.h"

#ifdef DST_F16
typedef ushort store;
#define PUT(v) f2h(v)
#else
typedef float store;
#define PUT(v) (v)
#endif

// dst[idx[t]] = src[t]; an index that is no row is skipped
INLINE void set_rows_body(int part, int parts, int T, int C, int K, GLOBAL store *dst, GLOBAL const float *RESTRICT src,
                          GLOBAL const int *RESTRICT idx) {
    FOR_RUN(t, T) {
        int c = idx[t];
        if (c < 0 || c >= C) continue;
        GLOBAL store *d = dst + (long)c * K;
        GLOBAL const float *s = src + (long)t * K;
        for (int i = 0; i < K; i++) d[i] = PUT(s[i]);
    }
}
KERNEL void set_rows(int T, int C, int K, GLOBAL store *dst, GLOBAL const float *RESTRICT src,
                     GLOBAL const int *RESTRICT idx) {
    set_rows_body(PART, PARTS, T, C, K, dst, src, idx);
}
STEP(set_rows, set_rows_body(part, parts, INT(0), INT(1), INT(2), PTR(3), PTR(4), PTR(5)))

// n bytes, in pieces of PIECE
#define PIECE 4096
INLINE void copy_body(int part, int parts, int n, int last, GLOBAL uchar *RESTRICT dst, GLOBAL const uchar *RESTRICT src) {
    FOR_RUN(p, n) {
        long at = (long)p * PIECE;
        int len = p == n - 1 ? last : PIECE;
        for (int i = 0; i < len; i++) dst[at + i] = src[at + i];
    }
}
KERNEL void copy(int n, int last, GLOBAL uchar *RESTRICT dst, GLOBAL const uchar *RESTRICT src) {
    copy_body(PART, PARTS, n, last, dst, src);
}
STEP(copy, copy_body(part, parts, INT(0), INT(1), PTR(2), PTR(3)))
