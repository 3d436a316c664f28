// Rotary position: pairs of channels of each head turned by angles from a table (rows, R, 2) of cosines and sines.
// -DNEOX pairs channel j with j + R, else 2j with 2j + 1. -DK_F16: the stored keys of rope_cells are half floats.
#include "prelude.h"

#ifdef NEOX
#define FIRST(j) (j)
#define SECOND(j, R) ((j) + (R))
#else
#define FIRST(j) (2 * (j))
#define SECOND(j, R) (2 * (j) + 1)
#endif

INLINE void rope_body(int part, int parts, int rows, int H, int D, int R, GLOBAL const float *RESTRICT x0,
                      GLOBAL const float *RESTRICT cs0, GLOBAL float *RESTRICT y0) {
    FOR_RUN(r, rows * H) {
        GLOBAL const float *x = x0 + (long)r * D, *cs = cs0 + (long)(r / H) * R * 2;
        GLOBAL float *y = y0 + (long)r * D;
        for (int j = 0; j < R; j++) {
            float c = cs[2 * j], s = cs[2 * j + 1], a = x[FIRST(j)], b = x[SECOND(j, R)];
            y[FIRST(j)] = FMA(c, a, -(s * b));
            y[SECOND(j, R)] = FMA(s, a, c * b);
        }
        for (int i = 2 * R; i < D; i++) y[i] = x[i];
    }
}
KERNEL void rope(int rows, int H, int D, int R, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT cs,
                 GLOBAL float *RESTRICT y) {
    rope_body(PART, PARTS, rows, H, D, R, x, cs, y);
}
STEP(rope, rope_body(part, parts, INT(0), INT(1), INT(2), INT(3), PTR(4), PTR(5), PTR(6)))

#ifdef K_F16
typedef ushort key;
#define GET(p) h2f(p)
#define PUT(v) f2h(v)
#else
typedef float key;
#define GET(p) (p)
#define PUT(v) (v)
#endif

INLINE void rope_cells_body(int part, int parts, int rows, int H, int D, int R, GLOBAL key *k0,
                            GLOBAL const float *RESTRICT cs0) {
    FOR_RUN(r, rows * H) {
        GLOBAL key *k = k0 + (long)r * D;
        GLOBAL const float *cs = cs0 + (long)(r / H) * R * 2;
        for (int j = 0; j < R; j++) {
            float c = cs[2 * j], s = cs[2 * j + 1], a = GET(k[FIRST(j)]), b = GET(k[SECOND(j, R)]);
            k[FIRST(j)] = PUT(FMA(c, a, -(s * b)));
            k[SECOND(j, R)] = PUT(FMA(s, a, c * b));
        }
    }
}
KERNEL void rope_cells(int rows, int H, int D, int R, GLOBAL key *k, GLOBAL const float *RESTRICT cs) {
    rope_cells_body(PART, PARTS, rows, H, D, R, k, cs);
}
STEP(rope_cells, rope_cells_body(part, parts, INT(0), INT(1), INT(2), INT(3), PTR(4), PTR(5)))
