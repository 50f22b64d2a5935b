// Fibers: stacks that one OS thread switches between. All stacks are made once and kept.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace host {

constexpr size_t stack_bytes = 64 << 10;
constexpr int max_threads = 1024;

void fiber_main();  // what every fiber runs; never returns

#ifdef __x86_64__

// A context is the stack pointer; what the calling convention lets a callee keep is on the stack.
// ucontext would make two system calls at every switch.
using Context = void*;

extern "C" void host_switch_context(Context* from, Context to);
asm(R"(
.text
.hidden host_switch_context
.globl host_switch_context
.type host_switch_context, @function
host_switch_context:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size host_switch_context, .-host_switch_context
)");

static inline void switch_context(Context* from, Context* to) { host_switch_context(from, *to); }

static inline void start_context(Context* context, char* stack) {
    uint64_t* top = reinterpret_cast<uint64_t*>(stack + stack_bytes);
    *--top = 0;  // where a return address would be: the stack is aligned as after a call
    *--top = reinterpret_cast<uint64_t>(&fiber_main);
    for (int saved = 0; saved < 6; ++saved) *--top = 0;
    *context = top;
}

#else

using Context = ucontext_t;

static inline void switch_context(Context* from, Context* to) { swapcontext(from, to); }

static inline void start_context(Context* context, char* stack) {
    getcontext(context);
    context->uc_stack.ss_sp = stack;
    context->uc_stack.ss_size = stack_bytes;
    context->uc_link = nullptr;
    makecontext(context, &fiber_main, 0);
}

#endif

static inline char* stack_of(int fiber) {
    static char* stacks = static_cast<char*>(
        mmap(nullptr, stack_bytes * max_threads, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return stacks + stack_bytes * static_cast<size_t>(fiber);
}

}  // namespace host
