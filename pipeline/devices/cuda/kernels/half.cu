// Convolutions on tensor cores: factors rounded to float16 on their way to shared memory, products
// summed in float32. Numbers beyond 65504 become infinite.
//
// A sum goes over k in steps of 16, ascending, whatever the tile and the other outputs: its bits
// depend on its own factors only.

#include "convolve.cuh"
#include "half_tile.cuh"

// Rows and columns of the tile, of a warp; k.
#define CONVOLVE_TILES(suffix, matrix)                                                \
    CONVOLVE(convolve_half_128x64_##suffix, matrix, 2, HalfTile<128, 64, 32, 32, 32>) \
    CONVOLVE(convolve_half_64x64_##suffix, matrix, 3, HalfTile<64, 64, 32, 32, 32>)

CONVOLVE_TILES(k1, Plain)
CONVOLVE_TILES(k3, Gathered<Place3>)
CONVOLVE_TILES(any, Gathered<AnyPlace>)
