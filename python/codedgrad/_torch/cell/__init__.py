"""A worker of several processes, its ranks, each with the model or a part of it: a *cell*.

The first rank alone is connected to the run. Each rank has a `CellWorker` in place of the native
worker, and all of them make the same calls in the same order. Before anything comes of a call the
ranks agree (`agree`): each says which call it is at, and the first one what it was told by the run.
So all take every branch alike. Where one has something else to say, that it has raised an exception,
leaves the loop, or was told to end, all hear of it here, and none waits in a collective for a rank
that does not come.

```text
the call      said by each rank                     said by the first
next          that the run is to be finished        the event, none while there is none yet
parts                                               the units, of which each computes its samples,
                                                    whether they are still wanted, and whether
                                                    the last one's is exchanged while it is computed
collect       which parameters have a gradient, and whether the next unit is still wanted
              whether one was written again
submit        what the task's units report          whether it is still wanted
state                                               how long each rank's is; then pieces of it
show                                                that it is in the shared memory
applied       its digests
taken/refuse  its digests, or what does not fit
leave         why
```

The gradient is one vector (`vector`), in which the parts of all ranks lie bucket by bucket. The ranks
share memory of their host, through which the first rank reads what others hand over and gives back
what is decoded.
"""
