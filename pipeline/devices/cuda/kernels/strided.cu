// Copies between layouts: what Transpose, Slice, Split, Concat, Expand, Tile, Gather and Pad are made of.

#include "interface.cuh"
#include "strides.cuh"

struct alignas(16) Quad {
    unsigned words[4];
};

template <class Element>
__device__ __forceinline__ void copy_strided(
    const Element *source, Element *target, const CopyLayout &layout, unsigned count) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    int from = 0, to = 0;
#pragma unroll
    for (int axis = 0; axis < MAX_RANK; ++axis) {
        if (axis >= layout.rank) break;
        const int place = next_place(index, layout.sizes[axis], axis == layout.rank - 1);
        from += place * layout.source[axis];
        to += place * layout.target[axis];
    }
    target[to] = source[from];
}

// One thread an element.
extern "C" __global__ void copy_strided_1(
    const unsigned char *source, unsigned char *target, CopyLayout layout, unsigned count) {
    copy_strided(source, target, layout, count);
}

extern "C" __global__ void copy_strided_2(
    const unsigned short *source, unsigned short *target, CopyLayout layout, unsigned count) {
    copy_strided(source, target, layout, count);
}

extern "C" __global__ void copy_strided_4(
    const unsigned *source, unsigned *target, CopyLayout layout, unsigned count) {
    copy_strided(source, target, layout, count);
}

extern "C" __global__ void copy_strided_8(
    const unsigned long long *source, unsigned long long *target, CopyLayout layout, unsigned count) {
    copy_strided(source, target, layout, count);
}

// One thread for 16 bytes; addresses need no alignment, but copies are faster where they have it.
extern "C" __global__ void copy_bytes(
    const unsigned char *source, unsigned char *target, unsigned bytes) {
    const unsigned first = (blockIdx.x * blockDim.x + threadIdx.x) * 16u;
    if (first >= bytes) return;
    source += first;
    target += first;
    const unsigned long long places = (unsigned long long)source | (unsigned long long)target;
    const int left = min(16, (int)(bytes - first));
    if (left == 16 && places % 16 == 0) {
        *(Quad *)target = *(const Quad *)source;
    } else if (left % 4 == 0 && places % 4 == 0) {
        for (int word = 0; word < left / 4; ++word)
            ((unsigned *)target)[word] = ((const unsigned *)source)[word];
    } else {
        for (int byte = 0; byte < left; ++byte) target[byte] = source[byte];
    }
}

// y[outer, k, inner] = x[outer, indices[k], inner]; x has `length` places along the axis, y has `chosen`.
extern "C" __global__ void gather(
    const unsigned *x, unsigned *y, const int *indices, unsigned count, int length, int chosen, int inner) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const unsigned row = index / inner, column = index % inner;
    const unsigned outer = row / chosen, place = row % chosen;
    y[index] = x[(outer * length + indices[place]) * inner + column];
}

extern "C" __global__ void fill(float *y, unsigned count, float value) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) y[index] = value;
}
