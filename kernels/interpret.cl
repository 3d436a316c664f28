// A program of steps, walked by a few groups at once. The rows of a step are cut into parts, and a group takes the next
// part that nobody has taken. Before a step that needs what an earlier one made, it waits until all earlier parts are done:
// for work, not for groups. A group that the system has put to sleep, or that never began, delays the others only by the
// part it holds.
//
// A record of the program: {what, parts, target, number of slots}, then a slot for each argument of that kernel.
//     what    which of STEPS
//     parts   how many; MANY of them are of three sizes, large ones first, so that all groups end at nearly the same time
//     target  so many parts must be done before this step may begin
// The host names the kernels: -DSTEPS=X(add_step__0)X(matmul_step__1)... in the order of their numbers.

typedef struct {
    int done;           // parts, of all steps so far
    int asleep;         // groups that want to be called when that changes
    int pad0[14];
    int broken;         // some group waited too long
    int limit;          // of looks at `done`
    int lost;           // step in which a group takes a part and leaves, counted from 1 (to test the limit)
    int pad1[13];
    int taken[1];       // for each step: how many of its parts are given out
} shared_state;

#define LOOK(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define COUNT(p, n) __atomic_fetch_add(p, n, __ATOMIC_ACQ_REL)
#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#else
#define RELAX()
#endif

// Until *p is no longer `value`, or a millisecond. The core goes to others meanwhile, to the thread waited for perhaps
#if defined(__x86_64__) && defined(__linux__)
#define FUTEX_WAIT 128
#define FUTEX_WAKE 129
INLINE void futex(GLOBAL int *p, int op, int value, const long *time) {
    long r = 202;
    __asm__ volatile("mov %4, %%r10\n\tsyscall" : "+a"(r) : "D"(p), "S"((long)op), "d"((long)value), "r"(time)
                     : "rcx", "r10", "r11", "memory");
}
INLINE void nap(GLOBAL int *p, int value) { const long time[2] = {0, 1000000}; futex(p, FUTEX_WAIT, value, time); }
INLINE void call(GLOBAL int *p) { futex(p, FUTEX_WAKE, 1 << 30, 0); }
#else
INLINE void nap(GLOBAL int *p, int value) { for (int i = 0; i < 100000 && LOOK(p) == value; i++) RELAX(); }
INLINE void call(GLOBAL int *p) {}
#endif

// Until `target` parts are done, or the wait was too long: then no group goes on
#define PATIENCE 1000   // looks before the first nap
INLINE int wait_for(GLOBAL shared_state *s, int target) {
    int done;
    for (int i = 0; (done = LOOK(&s->done)) < target; i++) {
        if (i >= s->limit) s->broken = 1;
        if (LOOK(&s->broken)) return 0;
        if (i < PATIENCE) { RELAX(); continue; }
        COUNT(&s->asleep, 1);
        nap(&s->done, done);
        COUNT(&s->asleep, -1);
    }
    return 1;
}

enum {
#define X(f) OP_##f,
STEPS
#undef X
};

INLINE void run_part(int what, int part, int of, GLOBAL const slot *a) {
    switch (what) {
#define X(f) case OP_##f: f(part, of, a); break;
STEPS
#undef X
    }
}

// The k-th part to be taken of MANY: half the rows in LEVEL parts, a quarter in LEVEL, the last quarter in 2*LEVEL
#define LEVEL (2*NGRP(0))
#define MANY (4*LEVEL)
INLINE int size_of_part(int k) { return (k < LEVEL ? 2 : k < 2*LEVEL ? 4 : 8) * LEVEL; }
INLINE int place_of_part(int k) { return k < LEVEL ? k : k < 2*LEVEL ? k + LEVEL : k + 4*LEVEL; }

// What a group did, for a picture: {step, begin, end} in ticks of the processor
INLINE void note_begin(GLOBAL ulong *trace, int step) {
    if (trace) { trace[0] = step; trace[1] = __builtin_readcyclecounter(); }
}
INLINE GLOBAL ulong *note_end(GLOBAL ulong *trace) {
    if (!trace) return trace;
    trace[2] = __builtin_readcyclecounter();
    return trace + 3;
}

__kernel REQD1 void interpret(int steps, GLOBAL const slot *program, GLOBAL shared_state *s, GLOBAL ulong *trace, int room) {
    GLOBAL const slot *r = program;
    if (trace) trace += (long)GRP(0) * room;
    for (int i = 0; i < steps; i++) {
        GLOBAL const int *head = (GLOBAL const int *)r;
        GLOBAL int *taken = s->taken + i;
        const int parts = head[1];
        int mine = 0;
        while (LOOK(taken) < parts) {
            if (!mine && !wait_for(s, head[2])) return;
            int k = COUNT(taken, 1);
            if (k >= parts) break;
            if (s->lost == i + 1 && k == 0) return;
            note_begin(trace, i + 1);
            int many = parts == MANY;
            run_part(head[0], many ? place_of_part(k) : k, many ? size_of_part(k) : parts, r + 2);
            trace = note_end(trace);
            mine++;
        }
        if (mine) {
            COUNT(&s->done, mine);
            if (LOOK(&s->asleep)) call(&s->done);
        }
        r += 2 + head[3];
    }
}
