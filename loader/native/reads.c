/* Reads of all models without Python's lock: whose read comes next, and the threads that bring it.
 *
 * The rules are those of loader/pool/order.py, in the same order. A client has a line of jobs, which Python
 * adds one by one, and at most one stream: the reads of a plan, numbered across passes, each free to start
 * when so many launches have ended. A stream counts for itself: Python is called only by who waits.
 *
 * Threads are Python's, and stay in pool_work while they read streams. They return for what Python does: jobs,
 * reads whose checksums are compared, files that have no descriptor, and reads that failed here.
 *
 * Invariant: everything is changed with the pool's lock held, but for `launched`, which the thread of a
 * stream counts without it. All memory of C is freed once no thread is left in here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef READS_SOURCES
#define READS_SOURCES ""
#endif

enum { WAITED_FOR, NEEDED_LATER, AHEAD };          /* Urgency */
enum { WAITING, IN_FLIGHT, DONE, FAILED };         /* of one read of a stream */
enum { ARRIVED, HAS_FAILED, TIMED_OUT, IS_CLOSED }; /* what a wait ends with */

/* As in library.py. */
struct segment { int64_t offset, length; char *target; };
struct read { int64_t n_bytes, free_after, first_segment, end_segment; };
struct job { int64_t id, n_bytes; double deadline; int64_t urgency; };
struct figures { int64_t n_bytes, reads, failures; double seconds, cpu_seconds; };

struct client {
  /* Shared with Python: reads that are done from the first on, launches that have ended, and how many of these
   * the next read waits for. */
  int64_t arrived, launched, wanted;
  struct figures figures;
  int64_t waiting, in_flight, hung, failed_read;
  /* The order. */
  int64_t depth, hurried, tag, passed;
  int in_line;
  /* Jobs: a ring of `room`. */
  struct job *jobs;
  int64_t first_job, n_jobs, room;
  /* The stream. */
  const struct read *reads;
  const struct segment *segments;
  int64_t count, n_reads, first, next, released;
  unsigned char *states;
  double *ends;
  double deadline;
  int descriptor, drops, verify, stopped, failed, awaits;
  int64_t flying, awaited;
  pthread_cond_t came;
  struct client *following;
};

struct flight {
  struct client *client;
  int64_t job;    /* its id; -1: a read of the stream */
  int64_t read;   /* its number across passes */
  int64_t index;  /* in the arrays of the stream */
  int64_t n_bytes;
  int64_t verify;
  double started;
  int64_t is_flying, hung, replaced;
  struct flight *following;
};

struct pool {
  pthread_mutex_t lock;
  pthread_cond_t more, watched, quiet;
  struct client *clients, *gone;
  struct flight *flights;
  int64_t capacity, replacements, queue_limit;
  double hung_seconds;
  int64_t virtual_time, patience;
  int64_t in_flight, hung, replaced, wake_ups, idle;
  struct figures figures;
  int closing, ended, watching;
};

static double now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct timespec at(double seconds) {
  struct timespec t;
  t.tv_sec = (time_t)seconds;
  t.tv_nsec = (long)(1e9 * (seconds - (double)t.tv_sec));
  return t;
}

static void init_condition(pthread_cond_t *condition) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
}

/* The order between clients. */

static int has_stream_line(const struct client *c) {
  return c->n_reads && !c->stopped && c->next < c->released;
}

/* See what of the stream may start by now, and how long the line is. */
static void look(struct pool *p, struct client *c) {
  if (c->n_reads && !c->stopped) {
    /* Of those that were started ahead one that failed is read again alone. */
    while (c->next < c->released && c->states[c->next] != WAITING) c->next++;
    for (;;) {
      int64_t launched = __atomic_load_n(&c->launched, __ATOMIC_SEQ_CST);
      while (c->released < c->n_reads && c->reads[c->released].free_after <= launched) c->released++;
      /* Who launches stores its count, then reads this: one of both sees the other. */
      int64_t wanted = c->next == c->released && c->next < c->n_reads ? c->reads[c->next].free_after : INT64_MAX;
      __atomic_store_n(&c->wanted, wanted, __ATOMIC_SEQ_CST);
      if (wanted > __atomic_load_n(&c->launched, __ATOMIC_SEQ_CST)) break;
    }
  }
  c->waiting = c->n_jobs + (has_stream_line(c) ? c->released - c->next : 0);
  if (c->waiting && !c->in_line) { /* it returns from a pause: no claim on what it did not use */
    if (c->tag < p->virtual_time) c->tag = p->virtual_time;
    c->passed = 0;
  }
  c->in_line = c->waiting > 0;
}

static int is_eligible(const struct client *c) { return c->waiting && c->in_flight < c->depth && !c->hung; }

static void need(const struct client *c, int64_t *urgency, double *deadline) {
  *urgency = AHEAD + 1;
  *deadline = INFINITY;
  for (int64_t i = 0; i < c->n_jobs; i++) {
    const struct job *job = &c->jobs[(c->first_job + i) % c->room];
    if (job->urgency < *urgency || (job->urgency == *urgency && job->deadline < *deadline)) {
      *urgency = job->urgency;
      *deadline = job->deadline;
    }
  }
  if (has_stream_line(c)) {
    int64_t mine = c->next < c->count ? NEEDED_LATER : AHEAD;
    if (mine < *urgency || (mine == *urgency && c->deadline < *deadline)) {
      *urgency = mine;
      *deadline = c->deadline;
    }
  }
  if (c->hurried) *urgency = WAITED_FOR;
}

static int comes_before(const struct client *one, const struct client *other) {
  int64_t urgency, others;
  double deadline, its;
  need(one, &urgency, &deadline);
  need(other, &others, &its);
  if (urgency != others) return urgency < others;
  if (deadline != its) return deadline < its;
  return one->tag < other->tag;
}

/* Return the client whose read comes next, NULL if none may start. */
static struct client *choose(struct pool *p) {
  struct client *best = NULL, *longest = NULL;
  if (p->in_flight - p->replaced >= p->capacity) return NULL;
  for (struct client *c = p->clients; c; c = c->following) {
    look(p, c);
    if (!is_eligible(c)) continue;
    if (!longest || c->passed > longest->passed) longest = c;
    if (!best || comes_before(c, best)) best = c;
  }
  return longest && longest->passed > p->patience ? longest : best;
}

/* Take the first read of `c` out of its line. */
static void take(struct pool *p, struct client *c, struct flight *f) {
  f->client = c;
  if (c->n_jobs) {
    struct job *job = &c->jobs[c->first_job];
    f->job = job->id;
    f->read = f->index = -1;
    f->n_bytes = job->n_bytes;
    f->verify = 0;
    c->first_job = (c->first_job + 1) % c->room;
    c->n_jobs--;
  } else {
    int64_t index = c->next++;
    f->job = -1;
    f->read = c->first + index;
    f->index = index;
    f->n_bytes = c->reads[index].n_bytes;
    f->verify = c->verify;
    c->states[index] = IN_FLIGHT;
    c->flying++;
  }
  int64_t charge = f->n_bytes > 1 ? f->n_bytes : 1;
  for (struct client *other = p->clients; other; other = other->following)
    if (is_eligible(other)) other->passed += charge;
  c->passed = 0;
  if (c->hurried) c->hurried--;
  c->in_flight++;
  c->tag += charge;
  look(p, c);
  int64_t least = INT64_MAX;
  for (struct client *each = p->clients; each; each = each->following)
    if ((each->in_flight || each->waiting) && !each->hung && each->tag < least) least = each->tag;
  if (least != INT64_MAX && least > p->virtual_time) p->virtual_time = least;
  f->started = now(CLOCK_MONOTONIC);
  f->is_flying = 1;
  f->hung = f->replaced = 0;
  p->in_flight++;
  if (!p->watching) {
    p->watching = 1;
    pthread_cond_signal(&p->watched);
  }
}

/* Let go of the lock, and wake a thread if it has something to read: only then, or it would wait for the lock. */
static void unlock_and_wake(struct pool *p) {
  int wakes = p->idle && choose(p);
  p->idle -= wakes; /* by who wakes it, so that no second one is woken for the same read */
  pthread_mutex_unlock(&p->lock);
  if (wakes) pthread_cond_signal(&p->more);
}

static void count(struct figures *figures, const struct flight *f, int failed, double seconds, double cpu_seconds) {
  figures->reads++;
  if (failed) figures->failures++;
  else figures->n_bytes += f->n_bytes;
  figures->seconds += seconds;
  figures->cpu_seconds += cpu_seconds;
}

/* Note the end of a read; return the client if its stream's thread is to be woken once the lock is free. */
static struct client *land(struct pool *p, struct flight *f, int failed, double cpu_seconds) {
  struct client *c = f->client;
  double ended = now(CLOCK_MONOTONIC);
  count(&p->figures, f, failed, ended - f->started, cpu_seconds);
  count(&c->figures, f, failed, ended - f->started, cpu_seconds);
  f->is_flying = 0;
  p->in_flight--;
  p->replaced -= f->replaced;
  c->in_flight--;
  if (f->hung) {
    p->hung--;
    if (!--c->hung) c->in_line = 0; /* it returns from a pause */
  }
  if (f->job < 0) {
    int64_t index = f->read - c->first;
    c->flying--;
    c->states[index] = failed ? FAILED : DONE;
    c->ends[index] = ended;
    if (failed && index < c->count && !c->failed) {
      c->failed = c->stopped = 1;
      c->failed_read = f->read;
    }
    int64_t arrived = c->arrived;
    while (arrived < c->n_reads && c->states[arrived] == DONE) arrived++;
    __atomic_store_n(&c->arrived, arrived, __ATOMIC_RELEASE);
    look(p, c);
  }
  if (p->closing) pthread_cond_signal(&p->quiet);
  return c->awaits && (c->arrived >= c->awaited || c->failed || !c->flying) ? c : NULL;
}

/* Read f's ranges; ranges that follow each other come as one. Returns whether all bytes came. */
static int bring(const struct client *c, const struct flight *f) {
  const struct read *read = &c->reads[f->index];
  for (int64_t i = read->first_segment; i < read->end_segment; i++) {
    const struct segment *segment = &c->segments[i];
    int64_t done = 0;
    while (done < segment->length) {
      struct iovec rest = {segment->target + done, (size_t)(segment->length - done)};
      ssize_t n = preadv(c->descriptor, &rest, 1, segment->offset + done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return 0; /* Python reads it again: its error says what and where */
      done += n;
    }
    if (c->drops) posix_fadvise(c->descriptor, segment->offset, segment->length, POSIX_FADV_DONTNEED);
  }
  return 1;
}

/* For Python. */

const char *reads_sources(void) { return READS_SOURCES; }

struct pool *pool_open(int64_t capacity, double hung_seconds, int64_t replacements, int64_t queue_limit, int64_t patience) {
  struct pool *p = calloc(1, sizeof *p);
  if (!p) return NULL;
  pthread_mutex_init(&p->lock, NULL);
  init_condition(&p->more);
  init_condition(&p->watched);
  init_condition(&p->quiet);
  p->capacity = capacity;
  p->hung_seconds = hung_seconds;
  p->replacements = replacements;
  p->queue_limit = queue_limit;
  p->patience = patience;
  return p;
}

static void empty(struct client *c) {
  free(c->jobs);
  free(c->states);
  free(c->ends);
}

static void free_clients(struct client *c) {
  while (c) {
    struct client *following = c->following;
    empty(c);
    free(c);
    c = following;
  }
}

/* Free the pool, with the clients that are left; no thread is in it. */
void pool_free(struct pool *p) {
  free_clients(p->clients);
  free_clients(p->gone);
  while (p->flights) {
    struct flight *f = p->flights;
    p->flights = f->following;
    free(f);
  }
  free(p);
}

struct client *pool_client(struct pool *p, int64_t depth) {
  pthread_mutex_lock(&p->lock);
  struct client *c = p->gone, **last = &p->clients;
  if (c) p->gone = c->following;
  else if ((c = malloc(sizeof *c))) init_condition(&c->came);
  if (c) {
    memset(c, 0, offsetof(struct client, came));
    c->following = NULL;
    c->depth = depth;
    c->tag = p->virtual_time;
    while (*last) last = &(*last)->following;
    *last = c;
  }
  pthread_mutex_unlock(&p->lock);
  return c;
}

/* Remove a client. Returns 1 where it has reads, and stays. Its memory is for the next one: a thread may be about
 * to signal to who waited. */
int pool_forget(struct pool *p, struct client *c) {
  pthread_mutex_lock(&p->lock);
  look(p, c);
  int busy = c->waiting || c->in_flight;
  for (struct client **each = &p->clients; *each && !busy; each = &(*each)->following)
    if (*each == c) {
      *each = c->following;
      empty(c);
      memset(c, 0, offsetof(struct client, came));
      c->following = p->gone;
      p->gone = c;
      break;
    }
  pthread_mutex_unlock(&p->lock);
  return busy;
}

/* Add a job to a client's line. `is_back`: the calling thread comes for one itself, at once. Returns 1 where the
 * line is full or there is no memory for it, 2 where the pool is closed. */
int pool_submit(struct pool *p, struct client *c, const struct job *job, int is_back) {
  int result = 0;
  pthread_mutex_lock(&p->lock);
  if (p->closing) result = 2;
  else if (c->n_jobs >= p->queue_limit) result = 1;
  else if (c->n_jobs == c->room) {
    int64_t room = c->room ? 2 * c->room : 8;
    struct job *jobs = malloc((size_t)room * sizeof *jobs);
    if (jobs) {
      for (int64_t i = 0; i < c->n_jobs; i++) jobs[i] = c->jobs[(c->first_job + i) % c->room];
      free(c->jobs);
      c->jobs = jobs;
      c->first_job = 0;
      c->room = room;
    } else result = 1;
  }
  if (!result) {
    c->jobs[(c->first_job + c->n_jobs++) % c->room] = *job;
    look(p, c);
  }
  if (result || is_back) pthread_mutex_unlock(&p->lock);
  else unlock_and_wake(p);
  return result;
}

/* Take a job out of its line and return its id, -1 where there is none. */
int64_t pool_take_back(struct pool *p) {
  int64_t id = -1;
  pthread_mutex_lock(&p->lock);
  for (struct client *c = p->clients; c && id < 0; c = c->following)
    if (c->n_jobs) {
      id = c->jobs[c->first_job].id;
      c->first_job = (c->first_job + 1) % c->room;
      c->n_jobs--;
      c->hurried = 0;
      look(p, c);
    }
  pthread_mutex_unlock(&p->lock);
  return id;
}

void pool_hurry(struct pool *p, struct client *c) {
  pthread_mutex_lock(&p->lock);
  look(p, c);
  c->hurried = c->waiting;
  pthread_mutex_unlock(&p->lock);
}

/* Return a flight for a thread, to be given to pool_work. */
struct flight *pool_thread(struct pool *p) {
  struct flight *f = calloc(1, sizeof *f);
  if (!f) return NULL;
  pthread_mutex_lock(&p->lock);
  f->following = p->flights;
  p->flights = f;
  pthread_mutex_unlock(&p->lock);
  return f;
}

/* Read what comes next until there is something for Python, described by `f`; return 1, or 0 where the thread
 * ends. */
int pool_work(struct pool *p, struct flight *f) {
  pthread_mutex_lock(&p->lock);
  for (;;) {
    struct client *c = NULL;
    if (f->replaced) break; /* another thread has its place */
    while (!p->ended && !(c = choose(p))) {
      p->idle++;
      pthread_cond_wait(&p->more, &p->lock);
      p->wake_ups += !p->ended;
    }
    if (!c) break;
    take(p, c, f);
    unlock_and_wake(p);
    if (f->job >= 0 || f->verify || c->descriptor < 0) return 1;
    double cpu = now(CLOCK_THREAD_CPUTIME_ID);
    int came = bring(c, f);
    cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    if (!came) return 1;
    pthread_mutex_lock(&p->lock);
    struct client *awaits = land(p, f, 0, cpu);
    if (awaits) {
      pthread_mutex_unlock(&p->lock);
      pthread_cond_signal(&awaits->came);
      pthread_mutex_lock(&p->lock);
    }
  }
  unlock_and_wake(p); /* for what this thread would have read next */
  return 0;
}

/* Note that what Python did for `f` has ended. */
void pool_ended(struct pool *p, struct flight *f, int failed, double cpu_seconds) {
  pthread_mutex_lock(&p->lock);
  struct client *awaits = land(p, f, failed, cpu_seconds);
  if (f->replaced) unlock_and_wake(p);
  else pthread_mutex_unlock(&p->lock);
  if (awaits) pthread_cond_signal(&awaits->came);
}

/* Wait until a read is found that hangs; return it, its client being stuck, or NULL when the pool has ended. */
struct flight *pool_watch(struct pool *p) {
  int has_paused = 1;
  pthread_mutex_lock(&p->lock);
  while (!p->ended) {
    double time = now(CLOCK_MONOTONIC);
    struct flight *oldest = NULL;
    for (struct flight *f = p->flights; f; f = f->following)
      if (f->is_flying && !f->hung && (!oldest || f->started < oldest->started)) oldest = f;
    if (oldest && time - oldest->started >= p->hung_seconds) {
      oldest->hung = 1;
      oldest->client->hung++;
      p->hung++;
      pthread_cond_signal(&p->quiet);
      unlock_and_wake(p);
      return oldest;
    }
    /* Woken for a read that has ended already, it is not to be woken for the next one, too. */
    p->watching = oldest || !has_paused;
    if (p->watching) {
      struct timespec end = at((oldest ? oldest->started : time) + p->hung_seconds);
      pthread_cond_timedwait(&p->watched, &p->lock, &end);
    } else pthread_cond_wait(&p->watched, &p->lock);
    has_paused = !oldest && !has_paused;
    p->wake_ups++;
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* Whether so few reads that hang have given up their places that another may. */
int pool_may_replace(struct pool *p) {
  pthread_mutex_lock(&p->lock);
  int may = p->replaced < p->replacements;
  pthread_mutex_unlock(&p->lock);
  return may;
}

/* Let another read start in the place of `f`, which hangs; its thread ends with it, since there is a new one. */
void pool_replace(struct pool *p, struct flight *f) {
  pthread_mutex_lock(&p->lock);
  if (f->is_flying && f->hung) {
    f->replaced = 1;
    p->replaced++;
  }
  unlock_and_wake(p);
}

static int is_unfinished(struct pool *p) {
  for (struct client *c = p->clients; c; c = c->following)
    if (c->n_jobs && !c->hung) return 1;
  return p->in_flight > p->hung;
}

/* Take no more reads, and wait for those that were taken until `give_up`; streams start none. */
void pool_close(struct pool *p, double give_up) {
  struct timespec end = at(give_up);
  pthread_mutex_lock(&p->lock);
  p->closing = 1;
  for (struct client *c = p->clients; c; c = c->following) {
    c->stopped = 1;
    look(p, c);
    pthread_cond_broadcast(&c->came);
  }
  while (is_unfinished(p) && pthread_cond_timedwait(&p->quiet, &p->lock, &end) != ETIMEDOUT) {}
  pthread_mutex_unlock(&p->lock);
}

/* Let all threads end that wait or have read. */
void pool_end(struct pool *p) {
  pthread_mutex_lock(&p->lock);
  p->ended = 1;
  pthread_cond_broadcast(&p->more);
  pthread_cond_broadcast(&p->watched);
  pthread_mutex_unlock(&p->lock);
}

/* Fill what it is and what its clients are: in flight, hanging, wake-ups. */
void pool_count(struct pool *p, struct figures *figures, int64_t counts[3]) {
  pthread_mutex_lock(&p->lock);
  for (struct client *c = p->clients; c; c = c->following) look(p, c);
  *figures = p->figures;
  counts[0] = p->in_flight;
  counts[1] = p->hung;
  counts[2] = p->wake_ups;
  pthread_mutex_unlock(&p->lock);
}

/* Streams. */

/* Give `c` the reads of a plan: `count` of each pass, and the others of `n_reads` ahead for the next one. They, and
 * their segments, stay where they are. Returns 1 where there is no memory. */
int stream_open(struct pool *p, struct client *c, const struct read *reads, const struct segment *segments, int64_t count,
                int64_t n_reads, int descriptor, int drops) {
  c->states = calloc((size_t)n_reads + 1, 1);
  c->ends = calloc((size_t)n_reads + 1, sizeof *c->ends);
  if (!c->states || !c->ends) return 1;
  pthread_mutex_lock(&p->lock);
  c->reads = reads;
  c->segments = segments;
  c->count = count;
  c->n_reads = n_reads;
  c->first = -count;
  c->descriptor = descriptor;
  c->drops = drops;
  c->stopped = 1;
  c->wanted = INT64_MAX;
  c->next = count; /* of the pass before the first: all of its own reads are over */
  pthread_mutex_unlock(&p->lock);
  return 0;
}

unsigned char *stream_states(struct client *c) { return c->states; }
double *stream_ends(struct client *c) { return c->ends; }

/* Start the next pass; return how many of its reads were started before, of which those that failed wait again;
 * -1 where reads of the pass before are in flight. */
int64_t stream_begin(struct pool *p, struct client *c, double deadline, int verify) {
  int64_t ahead = c->n_reads - c->count, started;
  pthread_mutex_lock(&p->lock);
  if (memchr(c->states, IN_FLIGHT, (size_t)c->count)) started = -1;
  else {
    memmove(c->states, c->states + c->count, (size_t)ahead);
    memset(c->states + ahead, WAITING, (size_t)c->count);
    memmove(c->ends, c->ends + c->count, (size_t)ahead * sizeof *c->ends);
    c->first += c->count;
    started = c->next > c->count ? c->next - c->count : 0;
    c->next = 0;
    c->arrived = 0;
    while (c->arrived < ahead && c->states[c->arrived] == DONE) c->arrived++;
    for (int64_t i = 0; i < ahead; i++)
      if (c->states[i] == FAILED) c->states[i] = WAITING;
    c->released = started;
    c->launched = 0;
    c->deadline = deadline;
    c->verify = verify;
    c->failed = 0;
    c->stopped = p->closing;
  }
  unlock_and_wake(p);
  return started;
}

/* Launches have ended that a read waits for. */
void stream_launched(struct pool *p) {
  pthread_mutex_lock(&p->lock);
  unlock_and_wake(p);
}

/* Wait until the first `needed` reads are done, or until `deadline`. */
int stream_wait(struct pool *p, struct client *c, int64_t needed, double deadline) {
  struct timespec end = at(deadline);
  int late = 0;
  pthread_mutex_lock(&p->lock);
  look(p, c);
  c->hurried = c->waiting; /* a thread was woken for what is in line */
  c->awaits = 1;
  c->awaited = needed;
  while (c->arrived < needed && !c->failed && !p->closing && !late)
    late = pthread_cond_timedwait(&c->came, &p->lock, &end) == ETIMEDOUT;
  c->awaits = 0;
  int result = c->arrived >= needed ? ARRIVED : c->failed ? HAS_FAILED : p->closing ? IS_CLOSED : TIMED_OUT;
  pthread_mutex_unlock(&p->lock);
  return result;
}

/* Start no more reads in this pass. */
void stream_stop(struct pool *p, struct client *c) {
  pthread_mutex_lock(&p->lock);
  c->stopped = 1;
  look(p, c);
  pthread_mutex_unlock(&p->lock);
}

/* Wait until none of its reads is in flight or waits in line; return how many are at `deadline`. */
int64_t stream_settle(struct pool *p, struct client *c, double deadline) {
  struct timespec end = at(deadline);
  int late = 0;
  pthread_mutex_lock(&p->lock);
  c->awaits = 1;
  c->awaited = INT64_MAX;
  for (;;) {
    look(p, c);
    if (late || !(c->flying || has_stream_line(c))) break;
    late = pthread_cond_timedwait(&c->came, &p->lock, &end) == ETIMEDOUT;
  }
  c->awaits = 0;
  int64_t left = c->flying + (has_stream_line(c) ? c->released - c->next : 0);
  pthread_mutex_unlock(&p->lock);
  return left;
}
