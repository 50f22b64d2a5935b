// From the index of an element to its place along each axis.
#pragma once

// Returns the place along an axis of `size`, and leaves in `index` what the axes around it have.
__device__ __forceinline__ int next_place(unsigned &index, int size, bool outermost) {
    if (outermost) return index;
    const unsigned around = index / size;
    const int place = index - around * size;
    index = around;
    return place;
}
