"""What the guarantees suite stands on: processes, scripted engines, a proxy, an auditor; no product code."""
