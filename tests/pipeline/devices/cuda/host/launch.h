// Launches of kernels as the driver makes them: a grid, threads of a block, pointers to arguments.
#pragma once

#include <csignal>
#include <cstdio>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "block.h"

namespace host {

// "p": pointer, "i": integer of 32 bits, "f": float, "sN;": structure of N integers.
template <class T> std::string kind() {
    if constexpr (std::is_pointer_v<T>) return "p";
    if constexpr (std::is_integral_v<T>) {
        static_assert(sizeof(T) == 4);
        return "i";
    }
    if constexpr (std::is_same_v<T, float>) return "f";
    return "s" + std::to_string(sizeof(T) / 4) + ";";
}

template <class... A> std::string signature(void (*)(A...)) {
    return (std::string() + ... + kind<A>());
}

template <class... A, size_t... I>
inline void call(void (*kernel)(A...), void** parameters, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<A>*>(parameters[I])...);
}

template <class... A> inline void call(void (*kernel)(A...), void** parameters) {
    call(kernel, parameters, std::index_sequence_for<A...>());
}

// One thread; the kernel is known to the compiler here, so that it can be inlined.
template <auto Kernel> void run_thread(void** parameters) { call(Kernel, parameters); }

// A thread that touches a page without access, or a number at an address that a GPU refuses, never goes on.
static void on_fault(int) {
    fail("a thread reads or writes where it must not", no_line);
    switch_context(&block.current->context, &block.scheduler);
}

// Catches faults as long as it lives.
struct Faults {
    static constexpr int signals[] = {SIGSEGV, SIGBUS, SIGILL};  // the last: -fsanitize=alignment traps
    struct sigaction before[3];
    Faults() {
        struct sigaction own = {};
        own.sa_handler = on_fault;
        own.sa_flags = SA_NODEFER;
        for (int i = 0; i < 3; ++i) sigaction(signals[i], &own, before + i);
    }
    ~Faults() {
        for (int i = 0; i < 3; ++i) sigaction(signals[i], before + i, nullptr);
    }
};

// Runs all blocks. Returns what went wrong, or null.
static const char* launch(void (*kernel)(void**), const unsigned int* grid, int threads,
                          void** parameters) {
    static std::mutex one_at_a_time;  // shared memory and fibers are the library's
    static char message[200];
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    if (threads < 1 || threads > max_threads) return "a block has 1 to 1024 threads";
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {static_cast<unsigned int>(threads), 1, 1};
    block.kernel = kernel;
    block.parameters = parameters;
    block.threads = threads;
    block.error = nullptr;
    drop_fibers();
    const Faults faults;
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z) {
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y) {
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
                run_block();
                if (block.error == nullptr) continue;
                snprintf(message, sizeof message, "%s (line %d)", block.error, block.error_line);
                return message;
            }
        }
    }
    return nullptr;
}

}  // namespace host

#define HOST_EXPORT extern "C" __attribute__((visibility("default")))
#define HOST_LAUNCHER(name)                                                                       \
    HOST_EXPORT const char* launch_##name(const unsigned int* grid, int threads, void** values) { \
        return host::launch(host::run_thread<&name>, grid, threads, values);                      \
    }                                                                                             \
    HOST_EXPORT const char* signature_##name() {                                                  \
        static const std::string text = host::signature(&name);                                   \
        return text.c_str();                                                                      \
    }
