// Threads that compute parts of a job beside the one that asks for it, and sleep otherwise.
//
// One pool a process. Whoever runs a job takes parts of it until none is left; threads that wake in time
// take others. So nobody waits for a thread that has not begun: where other work has the cores, the caller
// computes alone. A second caller at the same time does so, too.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "chain.h"
#include "jobs.h"

enum { MOST_THREADS = 64 };
// Elements that a thread takes at once, and of how many on waking others is worth it.
enum { PART = 16 << 10, WORTH_WAKING = 32 << 10 };

static pthread_mutex_t callers = PTHREAD_MUTEX_INITIALIZER;  // held through a job, and while threads change
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     // of what follows
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static pthread_t threads[MOST_THREADS];
static int n_threads;  // beside the caller
static int places;     // how many of them may still join the job
static int working;
static int stopping;
static const struct job *current;  // NULL: none

static atomic_size_t next;

static void work(const struct job *job) {
    for (;;) {
        const size_t number = atomic_fetch_add(&next, 1);
        if (number >= job->n_parts) return;
        job->part(job->argument, number);
    }
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stopping && !(current && places)) pthread_cond_wait(&begun, &lock);
        if (stopping) break;
        const struct job *job = current;
        places--;
        working++;
        pthread_mutex_unlock(&lock);
        work(job);
        pthread_mutex_lock(&lock);
        if (!--working) pthread_cond_signal(&ended);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void share(const struct job *job, int helpers) {
    atomic_store(&next, 0);
    pthread_mutex_lock(&lock);
    current = job;
    places = helpers;
    pthread_mutex_unlock(&lock);
    if (helpers == 1) {
        pthread_cond_signal(&begun);
    } else {
        pthread_cond_broadcast(&begun);
    }
    work(job);
    pthread_mutex_lock(&lock);
    current = NULL;
    while (working) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
}

void elementwise_share(const struct job *job, int wanted) {
    const int helpers = wanted - 1;
    const int locked = helpers > 0 && job->n_parts > 1 && !pthread_mutex_trylock(&callers);
    if (locked && n_threads) {
        share(job, helpers < n_threads ? helpers : n_threads);
    } else {
        for (size_t number = 0; number < job->n_parts; number++) job->part(job->argument, number);
    }
    if (locked) pthread_mutex_unlock(&callers);
}

static void part_of_chain(void *argument, size_t number) {
    const struct chain *chain = argument;
    const size_t first = number * PART, left = chain->n_elements - first;
    compute(chain, first, first + (left < PART ? left : PART));
}

void elementwise_run(const struct chain *chain) {
    if (chain->n_threads < 2 || chain->n_elements < WORTH_WAKING) {
        compute(chain, 0, chain->n_elements);
        return;
    }
    const struct job job = {part_of_chain, (void *)chain, (chain->n_elements + PART - 1) / PART};
    elementwise_share(&job, chain->n_threads);
}

// Threads take no signals: handlers belong to the program.
static int start(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&threads[n_threads], NULL, help, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) n_threads++;
    return !failed;
}

static void stop(void) {
    pthread_mutex_lock(&lock);
    stopping = 1;
    pthread_mutex_unlock(&lock);
    pthread_cond_broadcast(&begun);
    while (n_threads) pthread_join(threads[--n_threads], NULL);
    stopping = 0;
}

// A child of fork has the thread that forked and no other: it begins without any.
static void before_fork(void) {
    pthread_mutex_lock(&callers);
    pthread_mutex_lock(&lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&callers);
}
static void in_child(void) {
    n_threads = working = 0;
    current = NULL;
    pthread_cond_init(&begun, NULL);
    pthread_cond_init(&ended, NULL);
    after_fork();
}
__attribute__((constructor)) static void survive_forks(void) {
    pthread_atfork(before_fork, after_fork, in_child);
}

// Lets `wanted` threads compute, the caller among them; returns how many there are. 1 ends the others.
int elementwise_threads(int wanted) {
    const int others = wanted - 1 < MOST_THREADS ? wanted - 1 : MOST_THREADS;
    pthread_mutex_lock(&callers);
    if (others < n_threads) stop();
    while (n_threads < others && start()) continue;
    const int now = n_threads + 1;
    pthread_mutex_unlock(&callers);
    return now;
}
