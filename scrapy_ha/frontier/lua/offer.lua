return store(A.entries)
