"""Generation over tokens: scheduling, sampling, scoring. Knows no HTTP and none of OpenAI's words."""
