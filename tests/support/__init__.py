"""What tests share: graphs, models, engines and builds. No test is imported from here."""
