// The bits of numbers as numbers of another type.
#pragma once

#include <cstdint>
#include <cstring>

namespace host {

template <class To, class From> static inline To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

}  // namespace host
