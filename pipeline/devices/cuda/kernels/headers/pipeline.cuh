// The loop over k of a block: while one stage is multiplied, the next one is read.
#pragma once

// Adds A B over `count` numbers k to sums. `a` and `b` fetch what belongs to the next T::k numbers
// k into registers (zeros where fewer than that are left), and store it into the stage that nobody
// reads: one barrier between two stages is enough. `stages`: shared memory.
template <class T, class A, class B>
__device__ __forceinline__ void accumulate(typename T::Stage (&stages)[2], A& a, B& b, int count,
                                           typename T::Sums& sums) {
    a.fetch(count);
    b.fetch(count);
    a.store(T::put_a(stages[0]));
    b.store(T::put_b(stages[0]));
    __syncthreads();
    int current = 0;
#pragma unroll 1
    for (int left = count - T::k; left > -T::k; left -= T::k) {
        if (left > 0) {
            a.fetch(left);
            b.fetch(left);
        }
        T::multiply(stages[current], sums);
        current ^= 1;
        // The last time nobody reads it, which costs less than to ask every time.
        a.store(T::put_a(stages[current]));
        b.store(T::put_b(stages[current]));
        __syncthreads();
    }
}
