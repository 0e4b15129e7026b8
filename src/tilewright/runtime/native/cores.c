/* How many cores this process may use.
 *
 * The affinity mask names logical processors. Several of one core share its arithmetic units, so
 * they count once. A container may be limited further, by a quota of processor time: more threads
 * than that would all be stopped for the rest of every period. `base/host.py` counts likewise for
 * the compiler.
 */
#define _GNU_SOURCE
#include "cores.h"

#include <unistd.h>

#if defined(__linux__)
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATH = 4096 };

/* Read the beginning of a file as text. */
static bool read_text(const char *path, char *text, size_t size) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  size_t length = fread(text, 1, size - 1, file);
  fclose(file);
  text[length] = 0;
  return length > 0;
}

/* Whether a usable processor with a lower number belongs to the same core. The kernel lists those
 * of a core as ranges: 0-1 or 3,67. */
static bool shares_core(const char *root, int processor, const cpu_set_t *usable) {
  char path[MAX_PATH], text[256];
  snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root,
           processor);
  if (!read_text(path, text, sizeof text)) return false;
  for (const char *at = text; *at;) {
    int first, last, read = 0;
    if (sscanf(at, "%d%n", &first, &read) != 1) break;
    at += read;
    last = first;
    if (*at == '-' && sscanf(at, "-%d%n", &last, &read) == 1) at += read;
    for (int other = first; other <= last && other < processor; other++) {
      if (other >= 0 && other < CPU_SETSIZE && CPU_ISSET(other, usable)) return true;
    }
    if (*at == ',') at++;
  }
  return false;
}

static int32_t cores_of(const char *root, const cpu_set_t *usable) {
  int32_t count = 0;
  for (int processor = 0; processor < CPU_SETSIZE; processor++) {
    count += CPU_ISSET(processor, usable) && !shares_core(root, processor, usable);
  }
  return count;
}

/* The processors that the quota of one control group amounts to; 0 if it has none. */
static double quota_of(const char *folder, bool is_unified) {
  char path[MAX_PATH + 32], text[64];
  double quota = 0, period = 0;
  snprintf(path, sizeof path, "%s/%s", folder, is_unified ? "cpu.max" : "cpu.cfs_quota_us");
  if (!read_text(path, text, sizeof text)) return 0;
  if (is_unified) { /* "max 100000" is no limit */
    if (sscanf(text, "%lf %lf", &quota, &period) != 2) return 0;
  } else {
    if (sscanf(text, "%lf", &quota) != 1) return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_text(path, text, sizeof text) || sscanf(text, "%lf", &period) != 1) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

/* The least quota of a control group and of those that contain it. Inside of a container its path
 * may be that of the host, where only the last of these folders exists. */
static double least_quota(const char *root, const char *controller, const char *group,
                          bool is_unified) {
  char folder[MAX_PATH];
  double least = 0;
  int base = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, controller);
  snprintf(folder + base, sizeof folder - (size_t)base, "%s", group);
  for (;;) {
    double quota = quota_of(folder, is_unified);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    char *last = strrchr(folder + base, '/');
    if (!last) return least;
    *last = 0;
  }
}

static double quota(const char *root) {
  char path[MAX_PATH], text[MAX_PATH];
  double least = 0;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  if (!read_text(path, text, sizeof text)) return 0;
  for (char *rest = text, *line; (line = strsep(&rest, "\n"));) { /* number:controllers:path */
    strsep(&line, ":");
    char *controllers = strsep(&line, ":");
    if (!line || strlen(line) > MAX_PATH / 2 || strlen(root) > MAX_PATH / 4) continue;
    bool is_unified = !*controllers;
    bool is_cpu = false;
    for (char *one; (one = strsep(&controllers, ","));) is_cpu = is_cpu || !strcmp(one, "cpu");
    if (!is_unified && !is_cpu) continue;
    double found = least_quota(root, is_unified ? "" : "/cpu", line, is_unified);
    if (found > 0 && (least == 0 || found < least)) least = found;
  }
  return least;
}

int32_t tw_usable_cores(const char *root) {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) {
    return (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
  }
  int32_t cores = cores_of(root, &usable);
  double processors = quota(root);
  if (processors <= 0 || processors >= cores) return cores;
  int32_t nearest = (int32_t)(processors + 0.5);
  return nearest > 0 ? nearest : 1;
}
#else
int32_t tw_usable_cores(const char *root) {
  (void)root;
  return (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
}
#endif
