// The matrix of pixels of a convolution, gathered while it is needed.
//
// Where number k of a window lies from its corner is the same for all pixels: a block keeps
// a table of it in shared memory, some words for each k, and writes it long before it is read. For
// a k that the sum does not have, the table has a place that no window finds inside the input.
#pragma once

#include "opaque.cuh"
#include "window.cuh"

// Windows of any size. Words: offset, rows and columns from the corner.
struct AnyPlace {
    static constexpr int words = 3;
    Corner corner;
    int origin;
    __device__ __forceinline__ AnyPlace(const Convolution& shape, int pixel)
        : corner(shape, pixel), origin(corner.top * shape.width + corner.left) {}

    static __device__ __forceinline__ void describe(const Convolution& shape, int k, bool exists,
                                                    int (&place)[words]) {
        const KernelPlace at(shape, k);
        const int y = at.row * shape.dilation_height, x = at.column * shape.dilation_width;
        place[0] = (at.channel * shape.height + y) * shape.width + x;
        place[1] = exists ? y : static_cast<int>(0x80000000u);
        place[2] = x;
    }

    __device__ __forceinline__ bool finds(const Convolution& shape,
                                          const int (&place)[words]) const {
        return static_cast<unsigned int>(corner.top) + place[1] <
                   static_cast<unsigned int>(shape.height) &&
               static_cast<unsigned int>(corner.left) + place[2] <
                   static_cast<unsigned int>(shape.width);
    }
};

// Windows of 3x3: which of the nine places lie inside is found once for a pixel. Words: offset, bit
// of the place.
struct Place3 {
    static constexpr int words = 2;
    int origin, inside;
    __device__ __forceinline__ Place3(const Convolution& shape, int pixel) : inside(0) {
        const Corner corner(shape, pixel);
        origin = corner.top * shape.width + corner.left;
#pragma unroll
        for (int place = 0; place < 9; ++place) {
            const int y = corner.top + place / 3 * shape.dilation_height;
            const int x = corner.left + place % 3 * shape.dilation_width;
            inside |= static_cast<int>(is_inside(shape, y, x)) << place;
        }
    }

    static __device__ __forceinline__ void describe(const Convolution& shape, int k, bool exists,
                                                    int (&place)[words]) {
        const int channel = k / 9, number = k - 9 * channel;
        const int row = number / 3, column = number - 3 * row;
        place[0] = (channel * shape.height + row * shape.dilation_height) * shape.width +
                   column * shape.dilation_width;
        place[1] = static_cast<int>(exists) << number;
    }

    __device__ __forceinline__ bool finds(const Convolution&, const int (&place)[words]) const {
        return (inside & place[1]) != 0;
    }
};

struct alignas(16) FourInts {
    int of[4];
};

// The matrix [k][pixels]; `Span` pixels of it. A thread reads for one pixel, the next thread for
// the next pixel. Windows of pixels beyond the last one may lie inside the input, too; what they
// add to is never written.
template <class Place, int Span, int K, int Threads> struct Pixels {
    static constexpr int held_numbers = Span * K / Threads;  // in ascending k
    static_assert(Threads % Span == 0 && held_numbers % 4 == 0);
    // Two parts: while the threads read one, each writes a k of the other, once every Threads / K
    // steps, behind the barrier which says that nobody reads it any more.
    static constexpr int entries = 2 * Threads;
    static_assert(Threads % K == 0);
    struct Table {
        FourInts words[Place::words][entries / 4];
    };

    const Convolution& shape;
    Table& table;
    Place place;
    const float* corner;  // of the window; may lie outside the input
    int begin, end;
    float held[held_numbers];

    // Numbers k in [begin, end). All threads of the block come here: there is a barrier.
    __device__ __forceinline__ Pixels(const float* image, const Convolution& convolution,
                                      int first, int first_k, int end_k, Table& places)
        : shape(convolution), table(places), place(convolution, first + threadIdx.x % Span),
          corner(opaque(image + place.origin)), begin(first_k), end(end_k) {
        describe(0);
        __syncthreads();
    }

    static __device__ __forceinline__ unsigned int k() {
        return threadIdx.x / Span * held_numbers;
    }

    // Writes the part of the table for `Threads` numbers k from begin + first on.
    __device__ __forceinline__ void describe(unsigned int first) const {
        const unsigned int entry = first % entries + threadIdx.x;
        const int k = begin + first + threadIdx.x;
        int found[Place::words];
        Place::describe(shape, k, k < end, found);
#pragma unroll
        for (int word = 0; word < Place::words; ++word) {
            table.words[word][entry / 4].of[entry % 4] = found[word];
        }
    }

    __device__ __forceinline__ void fetch(int left) {
        const unsigned int first = end - begin - left;
        if (first % Threads == 0) describe(first + Threads);
        const unsigned int four_entries = first % entries / 4 + k() / 4;
#pragma unroll
        for (int i = 0; i < held_numbers; i += 4) {
            FourInts four[Place::words];
#pragma unroll
            for (int word = 0; word < Place::words; ++word) {
                four[word] = table.words[word][four_entries + i / 4];
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int found[Place::words];
#pragma unroll
                for (int word = 0; word < Place::words; ++word) found[word] = four[word].of[j];
                held[i + j] = place.finds(shape, found) ? __ldg(corner + found[0]) : 0.0f;
            }
        }
    }

    template <class Put> __device__ __forceinline__ void store(Put put) const {
#pragma unroll
        for (int i = 0; i < held_numbers; ++i) put.one(k() + i, threadIdx.x % Span, held[i]);
    }
};
