// Addresses that the compiler takes as they are.
#pragma once

// Returns `address`, of which the compiler forgets how it was made. Otherwise it adds up the
// indices of all steps on the way to an address, in 64 bits and for each number that is read anew,
// where one multiply-add to a ready address would do.
__device__ __forceinline__ const float* opaque(const float* address) {
#ifndef HOST_BUILD
    asm("" : "+l"(address));
#endif
    return address;
}
