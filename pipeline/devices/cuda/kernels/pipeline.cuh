// The loop over k of a block: while one stage is multiplied, the next one is read.
#pragma once

// Adds A B over k in [begin, end) to sums. `a` and `b` fetch what belongs to T::k numbers k into
// registers (zeros from `end` on), and store it into the stage that nobody reads: one barrier
// between two stages is enough. `stages`: shared memory.
template <class T, class A, class B>
__device__ __forceinline__ void accumulate(typename T::Stage (&stages)[2], A& a, B& b, int begin,
                                           int end, typename T::Sums& sums) {
    a.fetch(begin, end);
    b.fetch(begin, end);
    a.store(T::put_a(stages[0]));
    b.store(T::put_b(stages[0]));
    __syncthreads();
    int current = 0;
#pragma unroll 1
    for (int k = begin; k < end; k += T::k) {
        const bool more = k + T::k < end;
        if (more) {
            a.fetch(k + T::k, end);
            b.fetch(k + T::k, end);
        }
        T::multiply(stages[current], sums);
        current ^= 1;
        if (more) {
            a.store(T::put_a(stages[current]));
            b.store(T::put_b(stages[current]));
        }
        __syncthreads();
    }
}
