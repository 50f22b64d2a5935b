// Tensor cores (sm_70 and later): products of 16x16x16 numbers by the 32 lanes of a warp, float16
// factors, float32 sums. PTX, because NVRTC comes without mma.h and cuda_fp16.h.
//
// Half precision numbers are unsigned short here. Matrices are row-major in shared memory; an
// address is a multiple of 32 bytes, a stride (numbers from row to row) of 16 bytes.
#pragma once

#ifndef HOST_BUILD  // which brings its own

struct FactorFragment {
    unsigned int r[8];
};
struct SumFragment {
    float r[8];
};

__device__ __forceinline__ unsigned short to_half(float x) {
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

__device__ __forceinline__ unsigned int shared_address(const void* address) {
    return static_cast<unsigned int>(__cvta_generic_to_shared(address));
}

#define LOAD_FRAGMENT(name, matrix)                                                            \
    __device__ __forceinline__ void name(FactorFragment& f, const unsigned short* from,        \
                                         int stride) {                                         \
        asm volatile("wmma.load." matrix ".sync.aligned.row.m16n16k16.shared.f16 "             \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                             \
                     : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3]), "=r"(f.r[4]),   \
                       "=r"(f.r[5]), "=r"(f.r[6]), "=r"(f.r[7])                                \
                     : "r"(shared_address(from)), "r"(stride)                                  \
                     : "memory");                                                              \
    }
LOAD_FRAGMENT(load_left, "a")
LOAD_FRAGMENT(load_right, "b")
#undef LOAD_FRAGMENT

__device__ __forceinline__ void multiply_add(SumFragment& d, const FactorFragment& a,
                                             const FactorFragment& b) {
    asm volatile(
        "wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19, %20, %21, %22, %23}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d.r[0]), "+f"(d.r[1]), "+f"(d.r[2]), "+f"(d.r[3]), "+f"(d.r[4]), "+f"(d.r[5]),
          "+f"(d.r[6]), "+f"(d.r[7])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(a.r[4]), "r"(a.r[5]),
          "r"(a.r[6]), "r"(a.r[7]), "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]),
          "r"(b.r[4]), "r"(b.r[5]), "r"(b.r[6]), "r"(b.r[7]));
}

__device__ __forceinline__ void store_sums(float* to, const SumFragment& d, int stride) {
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], "
                 "{%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(shared_address(to)),
                 "f"(d.r[0]), "f"(d.r[1]), "f"(d.r[2]), "f"(d.r[3]), "f"(d.r[4]), "f"(d.r[5]),
                 "f"(d.r[6]), "f"(d.r[7]), "r"(stride)
                 : "memory");
}

#endif
